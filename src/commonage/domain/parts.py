"""Computes how much of a device a GPU request takes: the only place that combines slots, MIG instances and free shares.

Called by placement, which gives shares, and by views of available resources.
"""

from __future__ import annotations

from dataclasses import dataclass

from commonage.domain.nodes import Device
from commonage.domain.requests import GpuRequest

INSTANCE_TOLERANCE_MILLI = 10
"""A MIG instance of an eighth has slightly less than an eighth of its GPU's memory: the driver keeps the rest."""


@dataclass(frozen=True, slots=True)
class Part:
    """VRAM in MiB and compute in thousandths that a request takes of a device; `whole` if nothing of it is left."""

    memory_mib: int
    compute_milli: int
    whole: bool = False


def part_of(device: Device, gpu: GpuRequest) -> Part | None:
    """The part that `gpu` takes of this device (of each, for several whole ones) if it is empty; None if it never fits.

    A whole GPU is never a MIG instance. A part of a GPU takes a whole MIG instance that is as large, and of a GPU with
    slots as many slots as it needs: a third of a GPU of 12 GiB and 4 GiB of it take the same.
    """
    memory = device.memory_mib
    if memory <= 0:
        return None
    if device.parent_uuid is not None:
        return _instance(device, gpu)
    if gpu.whole:
        return Part(memory, 1000, whole=True)
    if gpu.vram_mib > memory:
        return None
    if device.slots:
        n = device.slots
        asked = gpu.vram_mib * n * 1000 // memory if gpu.vram_mib else gpu.fraction_milli * n
        # 1/3 comes as 333 thousandths: rounding down must not cost a slot, nor may a difference below a thousandth.
        slots = max(1, -(-asked // 1000))
        return Part(memory * slots // n, 1000 * slots // n)
    return Part(gpu.memory_on(memory), gpu.compute_on(memory))


def _instance(device: Device, gpu: GpuRequest) -> Part | None:
    if gpu.whole:
        return None
    has_milli = device.memory_mib * 1000 // device.parent_memory_mib if device.parent_memory_mib else 1000
    enough = gpu.fraction_milli <= has_milli + INSTANCE_TOLERANCE_MILLI and gpu.vram_mib <= device.memory_mib
    return Part(device.memory_mib, 1000, whole=True) if enough else None
