"""Requests as the scheduler sees them: queued requests, allocated requests, and shapes.

A `Shape` holds a request as numbers; equal requests share one. The live state makes queued and allocated requests. The
grid makes shapes, because it knows the kinds of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commonage.domain.nodes import Allocation, Device
from commonage.domain.requests import GpuRequest, Request, part_of
from commonage.domain.workloads import attempt_id


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request that waits. `attempt` is the number of the attempt that would start."""

    workload_id: str
    request: Request
    priority: int
    submitted_at: float
    time_limit_s: int | None = None
    owner: str = ""
    tenant: str = ""
    kind: str = ""
    environment: str = ""
    preemptible: bool = False
    gang: str | None = None  # members of one gang start together, on different nodes, or not at all
    gang_size: int = 1
    near: tuple[str, ...] = ()  # volumes: it runs at a site that has all of them
    attempt: int = 1

    @property
    def attempt_id(self) -> str:
        return attempt_id(self.workload_id, self.attempt)


@dataclass(frozen=True, slots=True)
class AllocatedRequest:
    """A held allocation, its holder, and the latest time at which its time limit ends it (None: unknown).

    `ending`: its stop is requested, and `ends_at` is the end of its grace period. `evicted_for` is the workload for
    which it is evicted, if there is one.
    """

    allocation: Allocation
    workload_id: str
    name: str
    owner: str
    kind: str
    ends_at: float | None = None
    tenant: str = ""
    environment: str = ""
    priority: int = 0
    preemptible: bool = False
    gang: str | None = None
    ending: bool = False
    evicted_for: str = ""


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max // 4  # more than any device has


class DeviceKind(NamedTuple):
    """A kind of devices: they take the same requests in the same way. Memory in MiB."""

    model: str
    memory_mib: int
    slots: int
    parent_memory_mib: int  # 0 except for MIG instances

    @classmethod
    def of(cls, device: Device) -> DeviceKind:
        return cls(device.model, device.memory_mib, device.slots, device.parent_memory_mib)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A request, interned: `number` is its index in the grid's tables. `devices` is the number it takes.

    `need_mib` and `need_milli` are what it takes from a device of each kind, [kinds + 1]; NEVER if the kind does not
    match, and in the last place, which the index -1 of absent devices finds.
    """

    number: int
    request: Request
    cpus_milli: int
    memory_mib: int
    devices: int
    need_mib: Ints
    need_milli: Ints

    @property
    def gpu_milli(self) -> int:
        """Thousandths of devices that it takes in all, on the device that needs least; 0 without a GPU."""
        if not self.devices:
            return 0
        least = int(self.need_milli.min())
        return 0 if least >= NEVER else least * self.devices

    @property
    def is_restricted(self) -> bool:
        """Whether only some nodes are open to it, whatever they have."""
        return bool(self.request.labels) or self.request.sites is not None

    @property
    def is_part(self) -> bool:
        gpu = self.request.gpu
        return gpu is not None and not gpu.whole


def shape_of(number: int, request: Request, kinds: list[tuple[DeviceKind, Device]]) -> Shape:
    gpu = request.gpu
    need_mib = np.full(len(kinds) + 1, NEVER, np.int64)
    need_milli = np.full(len(kinds) + 1, NEVER, np.int64)
    if gpu is not None:
        for index, (_, device) in enumerate(kinds):
            part = part_of(device, gpu) if model_matches(gpu, device.model) else None
            if part is not None:
                need_mib[index], need_milli[index] = part.memory_mib, part.compute_milli
    devices = 0 if gpu is None else max(1, gpu.whole)
    return Shape(number, request, request.cpus_milli, request.memory_mib, devices, need_mib, need_milli)


def model_matches(gpu: GpuRequest, model: str) -> bool:
    """True if no model was requested, or one of the names (`A100`, `A100|H100`; any case, any part) is in `model`."""
    if gpu.model is None:
        return True
    return any(name.strip().casefold() in model.casefold() for name in gpu.model.split("|"))
