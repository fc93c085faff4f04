"""Attributes GPU use: assigns each process that the driver lists to the attempt that owns it. Pure.

Called by the sampling loop; read by the watchdog, the usage reports and the metrics. Unknown figures stay unknown. If a
PID was reused since the driver was asked, the process counts for no attempt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from commonage.domain.nodes import Allocation, Device, DeviceKey, Share
from commonage.domain.reasons.notes import ProcessInfo, UnattributedGpuMemory
from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.ports.devices import DeviceSample, ProcessMemory

Figure = TypeVar("Figure", int, float)
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Use:
    """Use of one GPU by an attempt: VRAM in MiB and utilisation 0..1, each the sum over the processes that report it.

    A figure is None if no process reports it.
    """

    memory_mib: int | None
    utilisation: float | None


@dataclass(frozen=True, slots=True)
class UnattributedProcess:
    """A process that holds VRAM of a GPU but belongs to no attempt. `name` is empty if it cannot be read."""

    pid: int | None
    memory_mib: int | None
    name: str


@dataclass(frozen=True, slots=True)
class MeasurementRound:
    """One round of measurements. `at` is the time just before engines and GPUs were asked.

    `samples` by device; `uses` by attempt and device: without an entry, the driver lists no process of that
    attempt on the device. `unattributed_processes` by device.
    """

    at: float
    samples: Mapping[DeviceKey, DeviceSample] = field(default_factory=dict)
    uses: Mapping[tuple[str, DeviceKey], Use] = field(default_factory=dict)
    unattributed_processes: Mapping[DeviceKey, Sequence[UnattributedProcess]] = field(default_factory=dict)
    measurements: Sequence[Measurement] = ()

    def memory_of(self, attempt_id: str, device: DeviceKey) -> int | None:
        """MiB that the attempt holds on the device: 0 without a process on it, None if unknown."""
        if device not in self.samples:
            return None
        use = self.uses.get((attempt_id, device))
        return 0 if use is None else use.memory_mib


def unknown_pids(samples: Iterable[DeviceSample]) -> set[int]:
    listed = (process for sample in samples for process in sample.processes)
    return {process.pid for process in listed if process.attempt_id is None and process.pid is not None}


def attribute(
    site: str,
    samples: Sequence[DeviceSample],
    owners: Iterable[ProcessOwner],
    at: float,
    measurements: Sequence[Measurement] = (),
) -> MeasurementRound:
    """Build the round of a site from samples requested at `at` and process owners that were looked up after them."""
    known: dict[int, ProcessOwner] = {}
    for each in owners:
        if each.attempt_id is not None or each.pid not in known:
            known[each.pid] = each
    by_device = {DeviceKey(site, sample.uuid): sample for sample in samples}
    uses: dict[tuple[str, DeviceKey], Use] = {}
    unattributed_processes: dict[DeviceKey, list[UnattributedProcess]] = defaultdict(list)
    for device, sample in by_device.items():
        for process in _each_once(sample.processes):
            owner = known.get(process.pid) if process.pid is not None else None
            attempt = process.attempt_id or (owner.attempt_id if owner else None)
            if process.attempt_id is None and owner is not None and owner.started_at > at:
                continue  # the process that the driver saw has ended, and its PID was reused
            if attempt is None:
                unattributed_processes[device].append(
                    UnattributedProcess(process.pid, process.memory_mib, owner.name if owner else "")
                )
            else:
                uses[attempt, device] = _add_process(uses.get((attempt, device)), process)
    return MeasurementRound(at, by_device, uses, unattributed_processes, measurements)


def merge_rounds(round_: MeasurementRound, others: Iterable[MeasurementRound]) -> MeasurementRound:
    """Merge the rounds of nodes that have no device in common. Time and measurements are those of the first."""
    samples, uses = dict(round_.samples), dict(round_.uses)
    unattributed_processes = dict(round_.unattributed_processes)
    for other in others:
        samples.update(other.samples)
        uses.update(other.uses)
        unattributed_processes.update(other.unattributed_processes)
    return replace(round_, samples=samples, uses=uses, unattributed_processes=unattributed_processes)


def _each_once(processes: Iterable[ProcessMemory]) -> list[ProcessMemory]:
    """For a process that is listed twice (as compute and as graphics) keep the larger figure."""
    once: dict[object, ProcessMemory] = {}
    for number, process in enumerate(processes):
        key = number if process.pid is None else ("pid", process.pid)
        before = once.get(key)
        if before is None:
            once[key] = process
            continue
        memory = _larger(before.memory_mib, process.memory_mib)
        once[key] = replace(before, memory_mib=memory, utilisation=_larger(before.utilisation, process.utilisation))
    return list(once.values())


def _larger(one: Figure | None, other: Figure | None) -> Figure | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _add_process(use: Use | None, process: ProcessMemory) -> Use:
    if use is None:
        return Use(process.memory_mib, process.utilisation)
    busy = _sum(use.utilisation, process.utilisation)
    return Use(_sum(use.memory_mib, process.memory_mib), None if busy is None else min(1.0, busy))


def _sum(one: Figure | None, other: Figure | None) -> Figure | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other


def shares_by_device(allocations: Iterable[Allocation]) -> dict[DeviceKey, dict[str, Share]]:
    """The share of each attempt, by device and attempt id."""
    holders: dict[DeviceKey, dict[str, Share]] = defaultdict(dict)
    for allocation in allocations:
        for share in allocation.shares:
            holders[allocation.device_key(share)][allocation.attempt_id] = share
    return holders


def parts_of(round_: MeasurementRound, device: DeviceKey, holders: Mapping[str, Share]) -> dict[str, float]:
    """Divide a GPU's power and utilisation among the attempts that hold it: parts of 1, by attempt.

    The parts follow the attempts' utilisation if the driver reports it for all of them. Otherwise they follow the
    shares of the attempts that have a process on the GPU, or of all attempts if none has.
    """
    busy = {each: round_.uses[each, device].utilisation if (each, device) in round_.uses else 0.0 for each in holders}
    told = {each: part for each, part in busy.items() if part is not None}
    total = sum(told.values())
    if len(told) == len(holders) and total > 0:
        return {each: part / total for each, part in told.items()}
    present = [each for each in holders if (each, device) in round_.uses] or list(holders)
    weights = {each: max(1, holders[each].compute_milli) for each in present}
    return {each: weights.get(each, 0) / sum(weights.values()) for each in holders}


def utilisation_of(round_: MeasurementRound, device: DeviceKey, attempt_id: str, part: float) -> float | None:
    """Utilisation that the attempt causes, 0..1: its own figure if known, otherwise its part of the GPU's figure."""
    use, sample = round_.uses.get((attempt_id, device)), round_.samples.get(device)
    if use is not None and use.utilisation is not None:
        return use.utilisation
    if use is None and (device in round_.unattributed_processes or any(each == device for _, each in round_.uses)):
        return 0.0  # other attempts have processes on the GPU, this one has none
    return None if sample is None or sample.utilisation is None else sample.utilisation * part


def unattributed(device: Device, found: Sequence[UnattributedProcess]) -> UnattributedGpuMemory:
    """Reason for admins about unattributed processes; it names at most three of them."""
    known = [one.memory_mib for one in found if one.memory_mib is not None]
    return UnattributedGpuMemory(
        gpu=device.label,
        model=device.model,
        used_mib=sum(known) if known else None,
        processes=tuple(ProcessInfo(one.pid, one.name) for one in found[:MAX_NAMED]),
        more=max(0, len(found) - MAX_NAMED),
    )
