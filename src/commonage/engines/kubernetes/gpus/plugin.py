"""Mode `plugin`: whole GPUs, vGPUs or MIG instances as extended resources of a device plugin.

The plugin chooses the device, so that ours have made-up names until the Pod runs. The uuid given is read from the
container's variable, and noted in the Pod's annotation. On a node with a vGPU, the vGPU is the node's whole GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import INSTANCE_INDEX, Device, Isolation, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import ClusterObjectMissing, GpuHeldByOthers, GpuMemoryUnknown, GpuTimeSliced
from commonage.engines.kubernetes.gpus.feature_labels import gpu_labels, mig_memory_mib, mig_profile
from commonage.engines.kubernetes.gpus.hami import REGISTER as HAMI_REGISTER
from commonage.engines.kubernetes.gpus.mode import (
    Applied,
    ClusterObjects,
    Detection,
    NodeObjects,
    add_resources,
    annotation,
    granted_by_plugin,
    hide_gpus,
    holds_devices,
    requested,
)
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.quantities import devices

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
_WHOLE, _INSTANCE = "plugin-gpu", "MIG-plugin"


class Plugin:
    name = "plugin"

    def detect(self, cluster: ClusterObjects) -> Detection:
        resources = Counter[str]()
        for node in cluster.nodes:
            resources.update(dict(_offered(node)))
        missing = None if resources.total() else ClusterObjectMissing(kind="Node resource", name=GPU)
        sliced = {gpu_labels(node).replicas for node in cluster.nodes} - {0, 1}
        has_mig = any(mig_profile(name) for name in resources)
        notices = tuple(GpuTimeSliced(replicas=count) for count in sorted(sliced))
        return Detection(self.name, Isolation.MIG if has_mig else None, missing, notices)

    def devices(self, objects: NodeObjects) -> tuple[Device, ...]:
        """One for each unit of a resource. As many of them as foreign Pods hold have a fault; which ones is unknown and
        does not matter.
        """
        foreign = [pod for pod in objects.pods if objects.is_foreign(pod) and holds_devices(pod)]
        found: list[Device] = []
        for resource, count in _offered(objects.node):
            taken = sum(requested(pod, resource) for pod in foreign)
            for number in range(count):
                faults: list[Reason] = [GpuHeldByOthers()] if number >= count - taken else []
                made = _instance if mig_profile(resource) else _whole
                found.append(made(objects, resource, number, faults))
        return tuple(found)

    def apply(self, pod: Manifest, shares: Sequence[Share]) -> Applied:
        resources = Counter(_resource_of(share) for share in shares)
        changed = hide_gpus(pod, but_first=True)  # the plugin sets the variable
        add_resources(changed["spec"]["containers"][0], resources)
        return Applied(changed)

    def granted(self, pod: Manifest, claims: Sequence[Manifest] = ()) -> tuple[str, ...]:
        return granted_by_plugin(pod)


def _offered(node: Manifest) -> Iterator[tuple[str, int]]:
    if annotation(node, HAMI_REGISTER):
        return  # its units are parts of GPUs, which only HAMi can tell apart
    allocatable = node.get("status", {}).get("allocatable", {})
    for resource in sorted(allocatable):
        if resource in (GPU, SHARED) or mig_profile(resource):
            yield resource, devices(allocatable[resource])


def _whole(objects: NodeObjects, resource: str, number: int, faults: list[Reason]) -> Device:
    labels = gpu_labels(objects.node)
    if labels.replicas > 1 or resource == SHARED:
        faults.append(GpuTimeSliced(replicas=max(labels.replicas, 2)))
    if not labels.memory_mib:
        faults.append(GpuMemoryUnknown())
    return Device(
        f"{_WHOLE}-{objects.name}-{number}",
        number,
        labels.model,
        labels.memory_mib,
        faults=tuple(faults),
        driver=labels.driver,
        compute_capability=labels.compute_capability,
        slots=1,
    )


def _instance(objects: NodeObjects, resource: str, number: int, faults: list[Reason]) -> Device:
    profile = mig_profile(resource)
    memory_mib = mig_memory_mib(objects.node, profile)
    if not memory_mib:
        faults.append(GpuMemoryUnknown())
    labels = gpu_labels(objects.node)
    return Device(
        f"{_INSTANCE}-{profile}-{objects.name}-{number}",
        INSTANCE_INDEX + number,
        labels.model.partition(" MIG ")[0],
        memory_mib,
        isolation=Isolation.MIG,
        faults=tuple(faults),
        driver=labels.driver,
        compute_capability=labels.compute_capability,
        slots=1,
        mig_profile=profile,
        parent_uuid=f"{_WHOLE}-{objects.name}",
    )


def _resource_of(share: Share) -> str:
    if not share.whole:
        raise EngineFailure("the GPU mode plugin gives whole devices only: request a whole GPU or a MIG profile")
    if share.device_uuid.startswith(f"{_WHOLE}-"):
        return GPU
    profile = share.device_uuid.removeprefix(f"{_INSTANCE}-").partition("-")[0]
    resource = f"nvidia.com/mig-{profile}"
    if not share.device_uuid.startswith(f"{_INSTANCE}-") or not mig_profile(resource):
        raise EngineFailure(f"the device {share.device_uuid!r} is none of a device plugin: check the site's GPU mode")
    return resource
