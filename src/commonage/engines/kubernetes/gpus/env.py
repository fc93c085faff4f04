"""Mode `env`: NVIDIA's container runtime gives the GPUs that a container's variable names.

Devices are whole GPUs reserved against the device plugin. The limit of VRAM is the runtime's variable: hard where its
toolkit and the driver (615 or newer) honor it, which no object of the cluster tells, so an admin states it.
"""

from __future__ import annotations

from collections.abc import Sequence

from commonage.domain.nodes import Device, Isolation, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import ClusterObjectMissing, GpuTimeSliced
from commonage.engines.kubernetes.gpus.feature_labels import gpu_labels
from commonage.engines.kubernetes.gpus.fractioning import MIN_DRIVER
from commonage.engines.kubernetes.gpus.mode import (
    VISIBLE,
    Applied,
    ClusterObjects,
    Detection,
    NodeObjects,
    hide_gpus,
    set_variables,
    uuids_in,
    uuids_of,
)
from commonage.engines.kubernetes.gpus.reservations import GPU, reserved_devices
from commonage.engines.kubernetes.manifest import Manifest

RUNTIME = "nvidia"
_LIMIT, _REQUEST = "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"


class Env:
    """`limits_honored`: an admin found that limits hold (`commonage doctor gpu` on a node)."""

    name = "env"

    def __init__(self, runtime: str = RUNTIME, *, limits_honored: bool = False) -> None:
        self._runtime, self._limits_honored = runtime, limits_honored

    def detect(self, cluster: ClusterObjects) -> Detection:
        isolations = {self._isolation(node) for node in cluster.nodes if _gpus(node)}
        isolation = Isolation.DRIVER_LIMIT if isolations == {Isolation.DRIVER_LIMIT} else Isolation.COOPERATIVE
        sliced = {gpu_labels(node).replicas for node in cluster.nodes if _gpus(node)} - {0, 1}
        notices = tuple(GpuTimeSliced(replicas=count) for count in sorted(sliced))
        return Detection(self.name, isolation, self._missing(cluster), notices)

    def _missing(self, cluster: ClusterObjects) -> Reason | None:
        if not any(one["metadata"]["name"] == self._runtime for one in cluster.runtime_classes or ()):
            return ClusterObjectMissing(kind="RuntimeClass", name=self._runtime)
        if not any(_gpus(node) for node in cluster.nodes):
            return ClusterObjectMissing(kind="Node resource", name=GPU)
        return None

    def _isolation(self, node: Manifest) -> Isolation:
        holds = self._limits_honored and gpu_labels(node).driver_major >= MIN_DRIVER
        return Isolation.DRIVER_LIMIT if holds else Isolation.COOPERATIVE

    def devices(self, objects: NodeObjects) -> tuple[Device, ...]:
        return reserved_devices(objects, self._isolation(objects.node))

    def apply(self, pod: Manifest, shares: Sequence[Share]) -> Applied:
        uuids = ",".join(uuids_of(shares))
        changed = hide_gpus(pod, but_first=True)
        changed["spec"]["runtimeClassName"] = self._runtime
        variables = {VISIBLE: uuids}
        limited = [share.memory_mib for share in shares if not share.whole]
        if limited:
            variables |= dict.fromkeys((_REQUEST, _LIMIT), str(min(limited)))
        set_variables(changed["spec"]["containers"][0], variables)
        return Applied(changed)

    def granted(self, pod: Manifest, claims: Sequence[Manifest] = ()) -> tuple[str, ...]:
        """The uuids in the variable: the runtime gives these or starts no container."""
        for one in pod["spec"]["containers"][0].get("env", ()):
            if one["name"] == VISIBLE:
                return uuids_in(str(one.get("value", "")))
        return ()


def _gpus(node: Manifest) -> int:
    return int(node.get("status", {}).get("allocatable", {}).get(GPU, 0))
