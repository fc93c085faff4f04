"""Finds attempts that hold more VRAM than their share, since when, and whether others need the memory. Pure.

The watchdog calls it with each round; it makes no statement where a figure is missing. A process needs its own CUDA
context on a GPU, which frameworks do not count against their limit: so that much VRAM above the share is tolerated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from commonage.control.usage.attribution import MeasurementRound
from commonage.domain.nodes import Allocation, Device, DeviceKey
from commonage.domain.reasons.attempts import NeededBy
from commonage.domain.requests import GpuRequest, part_of

ROUNDS_TO_BE_SURE = 2
IMPOSSIBLE_PART = 1.05  # no process holds more than its GPU has; a figure above this is invalid


class OverSharePolicy(StrEnum):
    """Action on an attempt over its share: warn, stop it after a while, or stop it once others need the memory."""

    WARN = "warn"
    STOP = "stop"
    CONTENDED = "contended"


@dataclass(frozen=True, slots=True)
class Excess:
    """An attempt that holds `used_mib` of a GPU, of which `share_mib` are its share (0: it has no share of this GPU).

    `since`: when it was first seen so; `rounds`: in how many consecutive rounds.
    """

    attempt_id: str
    key: DeviceKey
    device: Device
    used_mib: int
    share_mib: int
    since: float
    rounds: int

    @property
    def sure(self) -> bool:
        """False while it could be a short peak."""
        return self.rounds >= ROUNDS_TO_BE_SURE


class Excesses:
    """Tracks attempts over their share. `tolerance_mib`: VRAM tolerated for a CUDA context, unless a larger one was
    measured; `gap_s`: an excess that was not seen for longer has ended.
    """

    def __init__(self, tolerance_mib: int, gap_s: float) -> None:
        self._tolerance_mib, self._gap_s = tolerance_mib, gap_s
        self._open: dict[tuple[str, DeviceKey], tuple[Excess, float]] = {}

    def take(
        self, round_: MeasurementRound, allocated: Iterable[Allocation], devices: Mapping[DeviceKey, Device]
    ) -> list[Excess]:
        """Return the attempts over their share in this round. GPUs missing from `devices` are not judged."""
        found: list[Excess] = []
        still: dict[tuple[str, DeviceKey], tuple[Excess, float]] = {}
        shares = {allocation.attempt_id: _shares(allocation) for allocation in allocated}
        for (attempt_id, key), (before, last_at) in self._open.items():
            if attempt_id in shares and 0 <= round_.at - last_at <= self._gap_s:
                still[attempt_id, key] = (before, last_at)
        for (attempt_id, key), use in round_.uses.items():
            device = devices.get(key)
            if attempt_id not in shares or device is None or use.memory_mib is None:
                continue  # no figure is known: the last excess stays valid until it is too old
            excess = self._with_state(attempt_id, key, device, use.memory_mib, shares[attempt_id])
            if excess is None:
                still.pop((attempt_id, key), None)
                continue
            earlier = still.get((attempt_id, key))
            since, rounds = (earlier[0].since, earlier[0].rounds + 1) if earlier else (round_.at, 1)
            excess = replace(excess, since=since, rounds=rounds)
            still[attempt_id, key] = (excess, round_.at)
            found.append(excess)
        gone = [each for each in still if each[1] in round_.samples and each not in round_.uses]
        for each in gone:  # the GPU was measured, and lists no process of the attempt any more
            del still[each]
        self._open = still
        return found

    def _with_state(
        self, attempt_id: str, key: DeviceKey, device: Device, used_mib: int, shares: Mapping[DeviceKey, int]
    ) -> Excess | None:
        share_mib = shares.get(key, 0)
        allowed = share_mib + max(self._tolerance_mib, device.context_mib) if share_mib else 0
        if used_mib <= allowed or share_mib >= device.memory_mib or used_mib > device.memory_mib * IMPOSSIBLE_PART:
            return None
        return Excess(attempt_id, key, device, used_mib, share_mib, 0.0, 0)


def _shares(allocation: Allocation) -> dict[DeviceKey, int]:
    mine: dict[DeviceKey, int] = {}
    for share in allocation.shares:
        key = allocation.device_key(share)
        mine[key] = mine.get(key, 0) + share.memory_mib
    return mine


def needed_by(
    excess: Excess, round_: MeasurementRound, allocated: Sequence[Allocation], queue: Iterable[GpuRequest]
) -> NeededBy | None:
    """Find the workload that needs the excess memory; None if no workload does, or it is unknown.

    A neighbour needs it if the unused rest of its share is no longer free on the GPU. A queued request needs it if it
    would fit onto the GPU without the attempt that is over its share.
    """
    sample = round_.samples.get(excess.key)
    if sample is None or sample.memory_used_mib is None:
        return None
    owed, allocated_mib = 0, 0
    for allocation in allocated:
        mine = _shares(allocation).get(excess.key, 0)
        allocated_mib += mine
        used = round_.memory_of(allocation.attempt_id, excess.key)
        if allocation.attempt_id != excess.attempt_id and used is not None:
            owed += max(0, mine - used)
    free = max(0, excess.device.memory_mib - sample.memory_used_mib)
    if owed > free:
        return NeededBy(is_queued=False, needed_mib=owed, free_mib=free)
    room = excess.device.memory_mib - allocated_mib + excess.share_mib
    for gpu in queue:
        part = part_of(excess.device, gpu) if _wants(gpu, excess.device) else None
        if part is not None and part.memory_mib <= room:
            return NeededBy(is_queued=True, needed_mib=part.memory_mib)
    return None


def _wants(gpu: GpuRequest, device: Device) -> bool:
    return gpu.whole <= 1 and (gpu.model is None or gpu.model.casefold() in device.model.casefold())
