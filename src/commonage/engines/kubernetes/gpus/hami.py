"""Mode `hami`: HAMi's scheduler gives the GPU that an annotation names; its library in the container limits the share.

Soft: a program can switch the library off. HAMi's webhook takes the Pod to HAMi's scheduler, an extended kube-scheduler
that respects the node affinity of our placement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from commonage.domain.nodes import Device, Isolation, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    ClusterObjectMissing,
    GpuHeldByOthers,
    GpuMemoryUnknown,
    GpuReportedUnhealthy,
)
from commonage.engines.kubernetes.gpus.feature_labels import gpu_labels
from commonage.engines.kubernetes.gpus.mode import (
    Applied,
    ClusterObjects,
    Detection,
    NodeObjects,
    add_resources,
    annotate,
    annotation,
    equal_share,
    hide_gpus,
    holds_devices,
    uuids_of,
)
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.quantities import MAX_DEVICES

REGISTER = "hami.io/node-nvidia-register"
ALLOCATED = "hami.io/vgpu-devices-allocated"
USE_UUID = "nvidia.com/use-gpuuuid"
GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
_WEBHOOK = "vgpu.hami.io"
_MAX_DIGITS, _MAX_TEXT = 12, 128
_FIELDS = ("id", "count", "devmem", "devcore", "type", "numa", "health")


class Hami:
    """`scheduler` is the name that HAMi was installed with (chart value `schedulerName`)."""

    name = "hami"

    def __init__(self, scheduler: str = "hami-scheduler") -> None:
        self._scheduler = scheduler

    def detect(self, cluster: ClusterObjects) -> Detection:
        missing: Reason | None = None
        if not any(one["name"] == _WEBHOOK for each in cluster.webhooks or () for one in each.get("webhooks", ())):
            missing = ClusterObjectMissing(kind="MutatingWebhookConfiguration", name=_WEBHOOK)
        elif not any(annotation(node, REGISTER) for node in cluster.nodes):
            missing = ClusterObjectMissing(kind="Node annotation", name=REGISTER)
        return Detection(self.name, Isolation.PRELOAD, missing)

    def devices(self, objects: NodeObjects) -> tuple[Device, ...]:
        labels = gpu_labels(objects.node)
        held = {
            uuid
            for pod in objects.pods
            if objects.is_foreign(pod) and holds_devices(pod)
            for uuid in _given(annotation(pod, ALLOCATED))
        }
        found = []
        for index, one in enumerate(_registered(annotation(objects.node, REGISTER))):
            faults: list[Reason] = [] if one["health"] else [GpuReportedUnhealthy()]
            if one["id"] in held:
                faults.append(GpuHeldByOthers())
            if not one["devmem"]:
                faults.append(GpuMemoryUnknown())
            found.append(
                Device(
                    one["id"],
                    int(one.get("index", index)),
                    one["type"].removeprefix("NVIDIA-"),
                    one["devmem"],
                    isolation=Isolation.PRELOAD,
                    faults=tuple(faults),
                    driver=labels.driver,
                    compute_capability=labels.compute_capability,
                    numa=one["numa"],
                )
            )
        return tuple(found)

    def apply(self, pod: Manifest, shares: Sequence[Share]) -> Applied:
        uuids, share = uuids_of(shares), equal_share(shares, self.name)
        changed = hide_gpus(pod, but_first=True)  # HAMi's device plugin sets the variable
        # HAMi counts cores in hundredths. Rounded down, so that all shares of a GPU fit; 0 would mean no limit.
        cores = 100 if share.whole else max(1, share.compute_milli // 10)
        container = changed["spec"]["containers"][0]
        add_resources(container, {GPU: len(uuids), MEMORY: share.memory_mib, CORES: cores})
        annotate(changed, {USE_UUID: ",".join(uuids)})
        changed["spec"]["schedulerName"] = self._scheduler
        return Applied(changed)

    def granted(self, pod: Manifest, claims: Sequence[Manifest] = ()) -> tuple[str, ...]:
        return tuple(_given(annotation(pod, ALLOCATED)))


def _given(allocated: str) -> Iterator[str]:
    """Uuids in `UUID,TYPE,MIB,CORES:…;…`, devices before `:`, containers before `;`."""
    for container in allocated.split(";"):
        for device in container.split(":"):
            uuid = device.partition(",")[0].strip()
            if uuid:
                yield uuid


def _registered(text: str) -> list[Manifest]:
    """Devices that HAMi's plugin on the node registered, without those that cannot be read.

    JSON, or `UUID,COUNT,MIB,CORES,TYPE,NUMA,HEALTH:…` of older versions.
    """
    if not text.startswith("["):
        rows = [dict(zip(_FIELDS, row.split(","), strict=False)) for row in text.split(":") if row.count(",") >= 6]
        found: list[object] = [
            row | {"devmem": _number(row["devmem"]), "numa": _number(row["numa"]), "health": row["health"] == "true"}
            for row in rows
        ]
    else:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return []
    # Empty values are left out of the JSON.
    empty: Manifest = {"devmem": 0, "type": "NVIDIA GPU", "numa": 0, "health": False}
    return [made for one in found if isinstance(one, dict) and _is_readable(made := empty | one)][:MAX_DEVICES]


def _is_readable(device: Manifest) -> bool:
    texts: list[object] = [device.get("id"), device["type"]]
    numbers: list[object] = [device["devmem"], device["numa"], device.get("index", 0)]
    return (
        bool(texts[0])
        and all(isinstance(text, str) and len(text) <= _MAX_TEXT and text.isprintable() for text in texts)
        and all(isinstance(number, int) and abs(number) < 10**_MAX_DIGITS for number in numbers)
        and device["health"] in (True, False)
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0
