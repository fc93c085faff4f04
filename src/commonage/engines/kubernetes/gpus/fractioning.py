"""Mode `fractioning`: kai-gpu-fractioning limits a container's VRAM by the driver (615 or newer), as annotations say.

Its node agent reads the annotations when a container is created, from any scheduler. KAI's admission lets only KAI's
own binder write them, so where that admission runs this mode cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence

from commonage.domain.nodes import Device, Isolation, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    ClusterObjectMissing,
    DriverTooOld,
    FractioningNotReady,
    GpuSharesOwnedByScheduler,
)
from commonage.engines.kubernetes.gpus.mode import (
    VISIBLE,
    Applied,
    ClusterObjects,
    Detection,
    NodeObjects,
    annotate,
    annotation,
    equal_share,
    hide_gpus,
    set_variables,
    uuids_in,
    uuids_of,
)
from commonage.engines.kubernetes.gpus.reservations import reserved_devices
from commonage.engines.kubernetes.manifest import Manifest

CONFIGS = "gpufractioningconfigs"
DRIVER_LABEL = "gpu-fractioning.kai.scheduler/nvidia-driver-version.major"
MIN_DRIVER = 615


class Fractioning:
    name = "fractioning"

    def detect(self, cluster: ClusterObjects) -> Detection:
        return Detection(self.name, Isolation.DRIVER_LIMIT, _missing(cluster))

    def devices(self, objects: NodeObjects) -> tuple[Device, ...]:
        """Those of nodes on which the node agent runs with a driver that enforces limits."""
        if _driver_of(objects.node) < MIN_DRIVER:
            return ()
        return reserved_devices(objects, Isolation.DRIVER_LIMIT)

    def apply(self, pod: Manifest, shares: Sequence[Share]) -> Applied:
        uuids, share = ",".join(uuids_of(shares)), equal_share(shares, self.name)
        changed = hide_gpus(pod, but_first=True)
        container = changed["spec"]["containers"][0]
        key = f"nvidia.com/container.{container['name']}"
        annotations = {f"{key}.gpus.devices": uuids}
        # A whole GPU has a limit too: without an annotation of memory the node agent ignores the container.
        memory = f"{share.memory_mib}Mi"
        annotations |= {f"{key}.gpu-memory.request": memory, f"{key}.gpu-memory.limit": memory}
        if not share.whole:
            annotations[f"{key}.gpu-compute.portion"] = f"{share.compute_milli / 1000:g}"
        annotate(changed, annotations)
        set_variables(container, {VISIBLE: uuids})
        return Applied(changed)

    def granted(self, pod: Manifest, claims: Sequence[Manifest] = ()) -> tuple[str, ...]:
        name = pod["spec"]["containers"][0]["name"]
        return uuids_in(annotation(pod, f"nvidia.com/container.{name}.gpus.devices"))


def _missing(cluster: ClusterObjects) -> Reason | None:
    if not cluster.fractioning:
        return ClusterObjectMissing(kind="GpuFractioningConfig", name="")
    for webhook in cluster.webhooks or ():
        if any(_is_kai(one) for one in webhook.get("webhooks", ())):
            return GpuSharesOwnedByScheduler(webhook=webhook["metadata"]["name"])
    ready = [_ready(config) for config in cluster.fractioning]
    if not any(is_ready for is_ready, _ in ready):
        return FractioningNotReady(error=ready[0][1])
    drivers = [_driver_of(node) for node in cluster.nodes]
    newest = max(drivers, default=0)
    if newest < MIN_DRIVER:
        return DriverTooOld(required=str(MIN_DRIVER), present=str(newest) if newest else "")
    return None


def _is_kai(webhook: Manifest) -> bool:
    service = webhook.get("clientConfig", {}).get("service", {})
    namespace, name = str(service.get("namespace", "")), str(service.get("name", ""))
    return namespace.startswith("kai-scheduler") or name.startswith(("kai-admission", "admission.kai"))


def _ready(config: Manifest) -> tuple[bool, str]:
    for condition in config.get("status", {}).get("conditions", ()):
        if condition["type"] == "Ready":
            return condition["status"] == "True", str(condition.get("message") or condition.get("reason", ""))
    return False, ""


def _driver_of(node: Manifest) -> int:
    found = str(node["metadata"].get("labels", {}).get(DRIVER_LABEL, ""))
    return int(found) if found.isascii() and found.isdigit() else 0
