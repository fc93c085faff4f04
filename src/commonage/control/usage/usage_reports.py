"""Usage reports: adds up what each attempt uses while it runs, and closes the report when it ends.

The sampling loop calls it with every round of samples. Intermediate figures are written every minute, the final ones
with the next round after the end. After a restart they are read again, so that a crash loses at most a minute of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from commonage.control.signals import Signal
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.usage.attribution import MeasurementRound, parts_of, shares_by_device, utilisation_of
from commonage.domain.nodes import Allocation, DeviceKey
from commonage.domain.statuses import LastUse, Measurement
from commonage.domain.usage import (
    Measured,
    UsageFigures,
    UsageReport,
    completed,
    cpu_milli_of,
    hash_command,
    sum_of,
    with_measurement,
)
from commonage.domain.workloads import Attempt, Workload, workload_of
from commonage.ports.clock import Clock
from commonage.ports.store import Store

WRITE_EVERY_S = 60.0
AT_ONCE = 500
ALIKE = 5  # suggestions use this many of the last runs


@dataclass(frozen=True, slots=True)
class _Device:
    """Figures of a GPU in one round: its energy since the last round, and the part of each holder."""

    energy_j: float | None
    parts: Mapping[str, float]


class UsageReports:
    """The only writer of usage reports. `every_s` is the interval between rounds."""

    def __init__(self, store: Store, live_state: LiveState, writer: Writer, clock: Clock, every_s: float) -> None:
        self._store, self._live_state, self._writer, self._clock = store, live_state, writer, clock
        self._every_s = every_s
        self._open: dict[str, UsageReport] = {}  # workload -> report of its present attempt
        self._ended: dict[str, UsageReport] = {}  # not written yet
        self._cpu: dict[str, tuple[float, float]] = {}  # attempt -> (at, CPU seconds until then)
        self._looked_at: dict[str, float] = {}
        self._last_use: dict[str, LastUse] = {}  # by attempt, until its end is written
        self._energy: dict[DeviceKey, tuple[float, float]] = {}  # device -> (at, the GPU's own counter)
        self._written_at = 0.0
        self.measured = Signal[str, Measured, float]()  # attempt, its measurement, and when

    async def open(self) -> None:
        """Read unfinished reports of the last process; close those that have ended. Call after the writer is open."""
        for usage_report in await self._store.open_usage_reports():
            workload = self._live_state.get(usage_report.workload_id)
            attempt = workload.attempt if workload is not None else None
            if attempt is None or attempt.id != usage_report.attempt_id:
                tries = await self._store.attempts(usage_report.workload_id)
                attempt = next((each for each in tries if each.id == usage_report.attempt_id), None)
            if attempt is not None and not attempt.state.is_terminal:
                self._open[usage_report.workload_id] = usage_report
            else:
                ended_at = attempt.ended_at if attempt is not None else None
                self._ended[usage_report.attempt_id] = _closed(usage_report, ended_at or self._clock.now())

    async def add(self, round_: MeasurementRound, over: frozenset[str]) -> None:
        """Add one round; `over`: attempts over their share. Raises Unavailable while the store does not answer."""
        allocated = [one.allocation for one in self._live_state.allocated()]
        devices = self._devices(round_, allocated)
        measured = {one.attempt_id: one for one in round_.measurements}
        for number, allocation in enumerate(allocated, 1):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)  # thousands of attempts take a while; let other tasks of the event loop run
            self._grow(allocation, round_, devices, measured.get(allocation.attempt_id), allocation.attempt_id in over)
        self._forget({allocation.attempt_id for allocation in allocated})
        await self.keep(everything=round_.at - self._written_at >= WRITE_EVERY_S)

    def _devices(self, round_: MeasurementRound, allocated: Sequence[Allocation]) -> dict[DeviceKey, _Device]:
        holders = shares_by_device(allocated)
        return {
            device: _Device(self._energy_of(device, round_), parts_of(round_, device, holders.get(device, {})))
            for device in round_.samples
        }

    def _energy_of(self, device: DeviceKey, round_: MeasurementRound) -> float | None:
        """Joules since the last round: from the GPU's own counter, otherwise from its present power."""
        sample, before = round_.samples[device], self._energy.get(device)
        span = min(self._every_s * 3, round_.at - before[0]) if before else self._every_s
        counted = sample.energy_j
        self._energy[device] = (round_.at, -1.0 if counted is None else counted)
        if counted is not None and before is not None and 0 <= before[1] <= counted:
            return counted - before[1]
        return None if sample.power_w is None else sample.power_w * max(0.0, span)

    def _grow(
        self,
        allocation: Allocation,
        round_: MeasurementRound,
        devices: Mapping[DeviceKey, _Device],
        use: Measurement | None,
        over: bool,
    ) -> None:
        workload = self._live_state.get(workload_of(allocation.attempt_id))
        attempt = workload.attempt if workload is not None else None
        if workload is None or attempt is None or attempt.started_at is None or attempt.ended_at is not None:
            return  # preparation time does not count as its run time
        span = self._span(attempt, round_.at)
        if span <= 0:
            return
        usage_report = self._open.get(workload.id)
        if usage_report is None or usage_report.attempt_id != attempt.id:
            self.changed(workload)
            usage_report = _begun(workload, attempt)
        vram = [round_.memory_of(attempt.id, allocation.device_key(share)) for share in allocation.shares]
        known = [mib for mib in vram if mib is not None]
        measured = Measured(
            span_s=span,
            running_s=max(0.0, round_.at - attempt.started_at),
            cpu_s=use.cpu_s if use else None,
            cpu_milli=self._cpu_milli(attempt, use, round_.at),
            memory_mib=use.memory_mib if use else None,
            vram_mib=sum(known) if known and len(known) == len(vram) else None,
            vram_max_mib=max(known, default=0),
            gpu=_utilisation(attempt.id, allocation, round_, devices),
            energy_j=_energy(attempt.id, allocation, devices),
            over_share=over,
        )
        self._open[workload.id] = replace(usage_report, figures=with_measurement(usage_report.figures, measured))
        self.measured.send(attempt.id, measured, round_.at)

    def _span(self, attempt: Attempt, at: float) -> float:
        """Seconds that this round stands for: since the last one, or one interval after a gap of more than three."""
        before = self._looked_at.get(attempt.id)
        self._looked_at[attempt.id] = at
        if before is None:
            return min(self._every_s, at - (attempt.started_at or at))
        return at - before if at - before <= 3 * self._every_s else self._every_s

    def _cpu_milli(self, attempt: Attempt, use: Measurement | None, at: float) -> int | None:
        if use is None:
            return None
        before_at, before = self._cpu.setdefault(attempt.id, (attempt.started_at or at, 0.0))
        if at - before_at < 1:
            return None  # over less than a second the kernel's counts are too coarse for a peak
        self._cpu[attempt.id] = (at, use.cpu_s)
        return cpu_milli_of(use.cpu_s - before, at - before_at)

    def _forget(self, allocated: set[str]) -> None:
        self._cpu = {key: value for key, value in self._cpu.items() if key in allocated}
        self._looked_at = {key: value for key, value in self._looked_at.items() if key in allocated}

    def note_last_use(self, attempt_id: str, used: LastUse) -> None:
        """Store the engine's total figures of an attempt; its end is written next."""
        workload = self._live_state.get(workload_of(attempt_id))
        attempt = workload.attempt if workload is not None else None
        if attempt is not None and attempt.id == attempt_id and not attempt.state.is_terminal:
            self._last_use[attempt_id] = used

    def changed(self, workload: Workload) -> None:
        """Called after each write of a workload: closes the report of a measured attempt that has ended."""
        usage_report, attempt = self._open.get(workload.id), workload.attempt
        used = self._last_use.pop(attempt.id, None) if attempt is not None and attempt.state.is_terminal else None
        if used is not None and attempt is not None and attempt.started_at is not None:
            if usage_report is None or usage_report.attempt_id != attempt.id:
                if usage_report is not None:
                    self._ended[usage_report.attempt_id] = _closed(usage_report, self._clock.now())
                usage_report = _begun(workload, attempt)
            ran_s = max(0.0, (attempt.ended_at or self._clock.now()) - attempt.started_at)
            usage_report = replace(usage_report, figures=completed(usage_report.figures, used, ran_s))
            self._open[workload.id] = usage_report
        if usage_report is None:
            return
        mine = attempt if attempt is not None and attempt.id == usage_report.attempt_id else None
        if (
            mine is None or mine.state.is_terminal
        ):  # None: its attempt ended and was followed by another one in the same batch
            del self._open[workload.id]
            ended_at = mine.ended_at if mine is not None else None
            self._ended[usage_report.attempt_id] = _closed(usage_report, ended_at or self._clock.now())

    async def keep(self, *, everything: bool = True) -> None:
        """Write the ended reports and, with `everything`, the unfinished ones. Raises like the writer."""
        ended = dict(self._ended)
        now = self._clock.now()
        running = [replace(each, gpu_h=_gpu_h(each, now)) for each in self._open.values()] if everything else []
        if ended or running:
            await self._writer.write(usage_reports=[*ended.values(), *running])
        for attempt_id in ended:
            self._ended.pop(attempt_id, None)
        if everything:
            self._written_at = now

    async def of(self, workload: Workload) -> UsageReport | None:
        """One report over all attempts of an ended workload; for a live one the figures of its present attempt.

        None if nothing was measured.
        """
        if not workload.state.is_terminal:
            found = self._open.get(workload.id)
            return replace(found, gpu_h=_gpu_h(found, self._clock.now())) if found is not None else None
        there = {each.attempt_id: each for each in await self._store.usage_reports(workload.id)}
        there |= {each.attempt_id: each for each in self._ended.values() if each.workload_id == workload.id}
        return sum_of(sorted(there.values(), key=lambda each: each.began_at))

    async def alike(self, owner: str, environment: str, command: Sequence[str]) -> Sequence[UsageReport]:
        """Last reports of this owner with the same environment and command, newest first."""
        command_hash = hash_command(environment, command)
        there = {
            each.attempt_id: each for each in await self._store.usage_reports_like(owner, command_hash, limit=ALIKE)
        }
        fresh = (each for each in self._ended.values() if (each.owner, each.command_hash) == (owner, command_hash))
        there |= {each.attempt_id: each for each in fresh}
        return sorted(there.values(), key=lambda each: each.ended_at or 0.0, reverse=True)[:ALIKE]


def _begun(workload: Workload, attempt: Attempt) -> UsageReport:
    spec, shares = workload.spec, attempt.allocation.shares
    largest = max(shares, key=lambda share: share.memory_mib, default=None)
    return UsageReport(
        attempt_id=attempt.id,
        workload_id=workload.id,
        owner=spec.owner,
        command_hash=hash_command(spec.environment, spec.command),
        began_at=attempt.allocation.at,
        ended_at=None,
        cpus_milli=attempt.allocation.cpus_milli,
        memory_mib=attempt.allocation.memory_mib,
        devices=len({share.device_uuid for share in shares}),
        vram_mib=largest.memory_mib if largest else 0,
        device_mib=largest.device_memory_mib if largest else 0,
        gpu_milli=sum(share.compute_milli for share in shares),
        whole=bool(shares) and all(share.whole for share in shares),
        simulated=bool(shares) and all(share.simulated for share in shares),
        figures=UsageFigures(),
    )


def _closed(usage_report: UsageReport, ended_at: float) -> UsageReport:
    return replace(usage_report, ended_at=ended_at, gpu_h=_gpu_h(usage_report, ended_at))


def _gpu_h(usage_report: UsageReport, until: float) -> float:
    return usage_report.gpu_milli / 1000 * max(0.0, until - usage_report.began_at) / 3600


def _utilisation(
    attempt_id: str, allocation: Allocation, round_: MeasurementRound, devices: Mapping[DeviceKey, _Device]
) -> float | None:
    """Mean over its GPUs; None unless all figures are known."""
    known = []
    for share in allocation.shares:
        device = devices.get(allocation.device_key(share))
        part = device.parts.get(attempt_id, 0.0) if device else 0.0
        busy = utilisation_of(round_, allocation.device_key(share), attempt_id, part)
        if busy is None:
            return None
        known.append(busy)
    return sum(known) / len(known) if known else None


def _energy(attempt_id: str, allocation: Allocation, devices: Mapping[DeviceKey, _Device]) -> float | None:
    """Its part of the energy of its GPUs; None unless all figures are known."""
    total = 0.0
    for share in allocation.shares:
        device = devices.get(allocation.device_key(share))
        if device is None or device.energy_j is None:
            return None
        total += device.energy_j * device.parts.get(attempt_id, 0.0)
    return total if allocation.shares else None
