"""Builds the `Device`s of a node: whole GPUs, and MIG instances in the place of a GPU that is split.

Used by `nvml`. A value that is not available stays empty; a problem becomes a fault or a notice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from commonage.domain.nodes import INSTANCE_INDEX, Device
from commonage.domain.reasons.devices import GpuMemoryUnknown, MigWithoutInstances
from commonage.gpu.device_faults import DeviceFaults, ResetMarkers
from commonage.gpu.environment import MIB
from commonage.gpu.nvml.health import health_of, recovery_of
from commonage.gpu.nvml.library import Gpu, Library
from commonage.gpu.nvml.places import Links, links_of, numa_of, pci_of, peers_of

_PROFILE = re.compile(r"MIG (\S+)$")


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance: its handle, and its position among those of its GPU."""

    handle: Any
    uuid: str
    place: int
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True, slots=True)
class Node:
    driver: str
    cuda: str
    boot: str
    places: Mapping[str, str]  # uuids by PCI place
    links: Mapping[str, Links]  # by uuid


def node_of(library: Library, gpus: Sequence[Gpu], boot: str) -> Node:
    """Versions and NVLinks. A GPU that fails during this is left out: its own inventory reports it."""
    places, links = {}, {}
    for gpu in gpus:
        try:
            places[pci_of(gpu)] = gpu.uuid
            links[gpu.uuid] = links_of(gpu)
        except pynvml.NVMLError:
            continue
    places.pop("", None)
    driver = library.try_to("nvmlSystemGetDriverVersion") or ""
    return Node(str(driver), cuda_version(library), boot, places, links)


def cuda_version(library: Library) -> str:
    """Like `13.1`; empty if not available."""
    number = library.try_to("nvmlSystemGetCudaDriverVersion_v2")
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def reset_markers_of(gpu: Gpu, driver: str, boot: str) -> ResetMarkers:
    """Values that change when the GPU is reset.

    Without persistence mode the driver unloads a GPU whenever no process has it open, and may then restart the energy
    count. That is no reset, so the count is ignored.
    """
    lasts = gpu.ask("nvmlDeviceGetPersistenceMode") == pynvml.NVML_FEATURE_ENABLED
    energy = gpu.ask("nvmlDeviceGetTotalEnergyConsumption") if lasts else None
    return ResetMarkers(boot, driver, None if energy is None else int(energy), recovery_of(gpu))


def devices_of(gpu: Gpu, node: Node, faults: DeviceFaults) -> tuple[Device, ...]:
    """The GPU, or its MIG instances. Raises pynvml.NVMLError if it fails during this."""
    device = _gpu(gpu, node, faults)
    if not is_split(gpu):
        return (device,)
    instances = instances_of(gpu)
    if not instances:
        return (replace(device, faults=(*device.faults, MigWithoutInstances(index=gpu.index))),)
    return tuple(_instance(gpu, device, one, faults) for one in instances)


def _gpu(gpu: Gpu, node: Node, faults: DeviceFaults) -> Device:
    total_mib, _ = memory_mib(gpu.library, gpu.handle)
    capability = gpu.ask("nvmlDeviceGetCudaComputeCapability")
    pci = pci_of(gpu)
    markers = reset_markers_of(gpu, node.driver, node.boot)
    health = health_of(gpu, capability and (capability[0], capability[1]), markers.recovery)
    missing = () if total_mib else (GpuMemoryUnknown(),)
    return Device(
        uuid=gpu.uuid,
        index=gpu.index,
        model=str(gpu.ask("nvmlDeviceGetName") or "unnamed GPU"),
        memory_mib=total_mib or 0,
        faults=(*missing, *faults.faults(gpu.uuid, gpu.index, markers), *health.faults),
        driver=node.driver,
        cuda=node.cuda,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
        pci=pci,
        numa=numa_of(gpu, pci),
        peers=peers_of(gpu.uuid, node.links, node.places),
        notices=(*faults.notices(gpu.uuid), *health.notices),
    )


# --- MIG ----------------------------------------------------------------------------------------------------------


def is_split(gpu: Gpu) -> bool:
    mode = gpu.ask("nvmlDeviceGetMigMode")
    return bool(mode and mode[0])


def instances_of(gpu: Gpu) -> list[Instance]:
    """Its instances, without one that is removed meanwhile. Raises pynvml.NVMLError if the GPU itself fails."""
    found = []
    for place in range(int(gpu.ask("nvmlDeviceGetMaxMigDeviceCount") or 0)):
        try:
            handle = gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
            if handle is None:
                continue
            uuid = gpu.library.api.nvmlDeviceGetUUID(handle)
            ids = [gpu.library.ask(f"nvmlDeviceGet{part}InstanceId", handle) for part in ("Gpu", "Compute")]
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                continue  # none at this position, or not any more
            raise
        found.append(Instance(handle, uuid, place, *ids))
    return found


def _instance(gpu: Gpu, whole: Device, one: Instance, faults: DeviceFaults) -> Device:
    mib, _ = memory_mib(gpu.library, one.handle)
    missing = () if mib else (GpuMemoryUnknown(),)
    return replace(
        whole,
        uuid=one.uuid,
        index=INSTANCE_INDEX * (gpu.index + 1) + one.place,
        memory_mib=mib or 0,
        faults=(*missing, *whole.faults),
        mig_profile=_profile(gpu.library, one.handle),
        parent_uuid=whole.uuid,
        parent_memory_mib=whole.memory_mib,
        peers=(),  # instances of different GPUs do not reach each other by NVLink
        notices=(*faults.notices(one.uuid), *whole.notices),
    )


def _profile(library: Library, handle: Any) -> str:
    """The name of its profile, like `1g.10gb`: taken from the instance's name, or derived from its resources."""
    named = _PROFILE.search(str(library.ask("nvmlDeviceGetName", handle) or ""))
    if named:
        return named[1]
    has = library.ask("nvmlDeviceGetAttributes_v2", handle)
    return "" if has is None else f"{has.gpuInstanceSliceCount}g.{round(has.memorySizeMB / 1024)}gb"


def memory_mib(library: Library, handle: Any) -> tuple[int | None, int | None]:
    """The memory that workloads can use of the GPU or instance and its used part, in MiB.

    The driver reserves a part, which the newer call reports separately: it cannot be allocated, and frameworks do not
    count it as the GPU's memory either.
    """
    memory = library.ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    if memory is not None:
        return (memory.total - memory.reserved) // MIB, memory.used // MIB
    memory = library.ask("nvmlDeviceGetMemoryInfo", handle)
    return (memory.total // MIB, memory.used // MIB) if memory is not None else (None, None)
