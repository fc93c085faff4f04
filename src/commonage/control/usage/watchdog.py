"""The VRAM watchdog: records and warns about an attempt that holds more than its share; by policy, stops it.

The sampling loop calls it with every round of samples; `over_share` makes the decisions. It stops only the attempt that
holds too much, never another one, and never on a missing or old figure. VRAM of processes without an attempt is
shown on the node and reported to admins.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from commonage.control.settings import ControlSettings
from commonage.control.state.feed import event_of
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.usage.attribution import MeasurementRound, UnattributedProcess, unattributed
from commonage.control.usage.over_share import Excess, Excesses, OverSharePolicy, needed_by
from commonage.domain.lifecycle import StopRequested
from commonage.domain.nodes import Device, DeviceKey
from commonage.domain.reasons.attempts import OverGpuShare
from commonage.domain.reasons.notes import OverGpuShareFollows, OverGpuShareWarning, UnattributedGpuMemoryFreed
from commonage.domain.requests import GpuRequest
from commonage.domain.usage import request_for_peak
from commonage.domain.workloads import Event, EventKind, State, StopCause, StopRequest, Workload, workload_of
from commonage.ports.clock import Clock

log = logging.getLogger(__name__)
WARN_AGAIN_S = 600.0
WORTH_A_WARNING_MIB = 64  # a display or a monitor holds a few MiB, which is harmless
MPS_SERVER = "nvidia-cuda-mps"  # the driver's own process, through which the shares of a GPU run
_FOLLOWS = {
    OverSharePolicy.STOP: OverGpuShareFollows.STOP,
    OverSharePolicy.CONTENDED: OverGpuShareFollows.STOP_WHEN_NEEDED,
    OverSharePolicy.WARN: OverGpuShareFollows.NOTHING,
}
_Key = tuple[str, DeviceKey]


class Watchdog:
    """`unattributed_processes` are the unattributed processes, by device, as the node shows them; `counts` the
    actions taken.
    """

    def __init__(self, live_state: LiveState, writer: Writer, clock: Clock, settings: ControlSettings) -> None:
        self._live_state, self._writer, self._clock = live_state, writer, clock
        self._policy = OverSharePolicy(settings.gpu_over_share)
        self._after_s = settings.gpu_over_share_after_s
        self._fresh_s = max(15.0, 3 * settings.sample_every_s)
        self._excesses = Excesses(settings.gpu_over_share_tolerance_mib, self._fresh_s)
        self._warned: dict[_Key, float] = {}
        self._seen_before: dict[DeviceKey, set[tuple[int | None, str]]] = {}
        self._reported: dict[DeviceKey, tuple[frozenset[tuple[int | None, str]], float]] = {}
        self.over: list[Excess] = []
        self.unattributed_processes: dict[DeviceKey, tuple[UnattributedProcess, ...]] = {}
        self.counts: Counter[str] = Counter()

    async def check(self, round_: MeasurementRound) -> None:
        """Judge one round. Raises Unavailable while the store does not answer; then the next round reports it."""
        now = self._clock.now()
        if not 0 <= now - round_.at <= self._fresh_s or self._writer.stuck:
            return
        devices = {
            node.device_key(device): device
            for node in self._live_state.nodes.values()
            for device in node.report.devices
        }
        allocated = [one.allocation for one in self._live_state.allocated()]
        self.over = [one for one in self._excesses.take(round_, allocated, devices) if one.sure]
        for excess in self.over:
            await self._act(excess, round_, now)
        self._warned = {key: at for key, at in self._warned.items() if now - at < WARN_AGAIN_S}
        await self._report_unattributed(round_, devices, now)

    async def _act(self, excess: Excess, round_: MeasurementRound, now: float) -> None:
        workload = self._live_state.get(workload_of(excess.attempt_id))
        attempt = workload.attempt if workload is not None else None
        if workload is None or attempt is None or attempt.id != excess.attempt_id or workload.stop is not None:
            return
        why = self._why_to_end(excess, round_, now)
        if why is not None:
            self._end(workload, why, now)
        elif (excess.attempt_id, excess.key) not in self._warned:
            await self._warn(workload, excess, now)

    def _why_to_end(self, excess: Excess, round_: MeasurementRound, now: float) -> OverGpuShare | None:
        lasts_s = now - excess.since
        over = OverGpuShare(
            gpu=excess.device.label,
            used_mib=excess.used_mib,
            share_mib=excess.share_mib,
            request_mib=request_for_peak(excess.used_mib, excess.device.memory_mib),
        )
        if self._policy is OverSharePolicy.STOP and lasts_s >= self._after_s:
            return replace(over, lasted_s=lasts_s, allowed_s=self._after_s)
        if self._policy is OverSharePolicy.CONTENDED:
            allocated = [one.allocation for one in self._live_state.allocated()]
            found = needed_by(excess, round_, allocated, self._queue())
            return None if found is None else replace(over, needed_by=found)
        return None

    def _queue(self) -> list[GpuRequest]:
        asked = {one.spec.request.gpu for one in self._live_state.in_state(State.QUEUED)}
        return [gpu for gpu in asked if gpu is not None]

    def _end(self, workload: Workload, why: OverGpuShare, now: float) -> None:
        log.warning("workload %s is ended: %s", workload.id, why)
        stop = StopRequest("the VRAM watchdog", now, StopCause.OVER_SHARE, why)
        self._writer.note(workload.id, StopRequested(stop))
        self.counts["stopped"] += 1

    async def _warn(self, workload: Workload, excess: Excess, now: float) -> None:
        warning = OverGpuShareWarning(
            gpu=excess.device.label,
            used_mib=excess.used_mib,
            share_mib=excess.share_mib,
            lasted_s=now - excess.since,
            follows=_FOLLOWS[self._policy],
            left_s=max(0.0, excess.since + self._after_s - now),
        )
        log.warning("attempt %s: %s", excess.attempt_id, warning)
        await self._writer.write(events=[event_of(workload, EventKind.WARNING, now, warning)])
        self._warned[excess.attempt_id, excess.key] = now
        self.counts["warned"] += 1

    async def _report_unattributed(
        self, round_: MeasurementRound, devices: Mapping[DeviceKey, Device], now: float
    ) -> None:
        """Report processes that were also in the last round: one that is just ending does not matter."""
        self.unattributed_processes = {
            key: self._lasting(key, found) for key, found in round_.unattributed_processes.items() if key in devices
        }
        self._seen_before = {key: {_key(one) for one in found} for key, found in round_.unattributed_processes.items()}
        for key in {*self.unattributed_processes, *self._reported}:
            if key in round_.samples and key in devices:
                await self._report_device(key, devices[key], self.unattributed_processes.get(key, ()), now)

    def _lasting(self, key: DeviceKey, found: Sequence[UnattributedProcess]) -> tuple[UnattributedProcess, ...]:
        before = self._seen_before.get(key, set())
        mine = (one for one in found if _key(one) in before and not one.name.startswith(MPS_SERVER))
        return tuple(sorted(mine, key=lambda one: -(one.memory_mib or 0)))

    async def _report_device(
        self, key: DeviceKey, device: Device, found: Sequence[UnattributedProcess], now: float
    ) -> None:
        holds = sum(one.memory_mib or 0 for one in found)
        there = frozenset(_key(one) for one in found) if holds >= WORTH_A_WARNING_MIB else frozenset()
        before, told_at = self._reported.get(key, (frozenset(), 0.0))
        if there <= before and (there or not before):
            return
        if there and now - told_at < WARN_AGAIN_S:
            return
        told = (
            unattributed(device, found) if there else UnattributedGpuMemoryFreed(gpu=device.label, model=device.model)
        )
        log.warning("%s", told)
        await self._writer.write(events=[Event(EventKind.WARNING if there else EventKind.NODE, now, told)])
        self._reported[key] = (there, now)


def _key(unattributed_process: UnattributedProcess) -> tuple[int | None, str]:
    return unattributed_process.pid, unattributed_process.name
