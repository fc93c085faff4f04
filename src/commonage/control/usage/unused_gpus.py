"""GPUs that sessions hold and do not use while others wait for one: notifies their owners.

The sampling loop calls it with every round. A GPU counts as unused if the driver measured it and the session computed
nothing on it; without a figure it counts as used. Of other tenants, the notice has only the number of users.
"""

from __future__ import annotations

from collections.abc import Sequence

from commonage.control.settings import ControlSettings
from commonage.control.state.feed import event_of
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.usage.attribution import MeasurementRound
from commonage.domain.nodes import Allocation, Device, Share
from commonage.domain.reasons.notes import GpuUnused
from commonage.domain.requests import part_of
from commonage.domain.usage import IDLE_BELOW
from commonage.domain.workloads import EventKind, Kind, State, Workload
from commonage.ports.clock import Clock

TELL_AGAIN_S = 3600.0
MAX_NAMED = 3


class UnusedGpus:
    def __init__(self, live_state: LiveState, writer: Writer, clock: Clock, settings: ControlSettings) -> None:
        self._live_state, self._writer, self._clock = live_state, writer, clock
        self._settings = settings
        self._used_at: dict[str, float] = {}
        self._told_at: dict[str, float] = {}

    async def add(self, round_: MeasurementRound) -> None:
        """Judge one round. Raises Unavailable while the store does not answer."""
        sessions = [
            (one, one.attempt.allocation)
            for one in self._live_state.in_state(State.RUNNING)
            if one.spec.kind is Kind.SESSION and one.attempt is not None and one.attempt.allocation.shares
        ]
        # After a start of this process, or of the attempt, it counts as used until now.
        self._used_at = {
            allocation.attempt_id: round_.at
            if _is_used(allocation, round_)
            else self._used_at.get(allocation.attempt_id, round_.at)
            for _, allocation in sessions
        }
        self._told_at = {attempt: at for attempt, at in self._told_at.items() if attempt in self._used_at}
        for session, allocation in sessions:
            told_at = self._told_at.get(allocation.attempt_id)
            found = self.wanted(session)
            if found is not None and (told_at is None or round_.at - told_at >= TELL_AGAIN_S):
                await self._writer.write(events=[event_of(session, EventKind.WARNING, self._clock.now(), found)])
                self._told_at[allocation.attempt_id] = round_.at

    def wanted(self, session: Workload) -> GpuUnused | None:
        """The notice that its GPU is unused while others wait for one; None if it is used, or no user waits."""
        attempt = session.attempt
        used_at = None if attempt is None else self._used_at.get(attempt.id)
        if attempt is None or used_at is None or session.stop is not None:
            return None
        unused_s = self._clock.now() - used_at
        if unused_s < self._settings.gpu_unused_after_s:
            return None
        waiting = self._waiting(session, attempt.allocation)
        if not waiting:
            return None
        names = sorted({one.spec.owner for one in waiting if one.spec.tenant == session.spec.tenant})
        others = {one.spec.owner for one in waiting} - set(names[:MAX_NAMED])
        gpu = attempt.allocation.shares[0].label
        return GpuUnused(gpu=gpu, unused_s=unused_s, waiting=tuple(names[:MAX_NAMED]), others=len(others))

    def _waiting(self, session: Workload, allocation: Allocation) -> Sequence[Workload]:
        """Queued workloads of others that would fit onto one of its GPUs without its share."""
        node = self._live_state.nodes.get(allocation.node_key)
        if node is None:
            return ()
        devices = {one.uuid: one for one in node.report.devices}
        room = [
            (devices[share.device_uuid], self._free_mib(allocation, share, devices[share.device_uuid]))
            for share in allocation.shares
            if share.device_uuid in devices
        ]
        rules = self._settings.rules
        return [
            one
            for one in self._live_state.in_state(State.QUEUED)
            if one.spec.owner != session.spec.owner
            and allocation.site in rules.sites_of(one.spec.tenant)
            and any(_fits(one, device, free_mib) for device, free_mib in room)
        ]

    def _free_mib(self, allocation: Allocation, share: Share, device: Device) -> int:
        key = allocation.device_key(share)
        others = sum(
            held.memory_mib
            for one in self._live_state.allocated()
            if one.allocation.attempt_id != allocation.attempt_id
            for held in one.allocation.shares
            if one.allocation.device_key(held) == key
        )
        return device.memory_mib - others


def _is_used(allocation: Allocation, round_: MeasurementRound) -> bool:
    for share in allocation.shares:
        key = allocation.device_key(share)
        if key not in round_.samples:
            return True  # not measured
        use = round_.uses.get((allocation.attempt_id, key))
        if use is not None and (use.utilisation is None or use.utilisation >= IDLE_BELOW):
            return True
    return False


def _fits(queued: Workload, device: Device, free_mib: int) -> bool:
    gpu = queued.spec.request.gpu
    if gpu is None or gpu.whole > 1 or (gpu.model is not None and gpu.model.casefold() not in device.model.casefold()):
        return False
    part = part_of(device, gpu)
    return part is not None and part.memory_mib <= free_mib
