"""Use cases of limits: a session's report of its activity, "two more hours", and giving back the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from commonage.control.queries.workloads import WorkloadQueries
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.usage.idle import Idle, SessionNotice
from commonage.domain.errors import Conflict, InvalidInput
from commonage.domain.idle import Activity, report_interval_s
from commonage.domain.lifecycle import Extended, StopRequested
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import GpuReleased, Kept
from commonage.domain.reasons.classes import ClassKeepsGpu
from commonage.domain.reasons.refusals import (
    EnvironmentNeedsGpu,
    GpuHoursLimit,
    MaxAgeReached,
    NoGpuToRelease,
    NothingToExtend,
    RoomReserved,
)
from commonage.domain.workloads import Kind, State, StopCause, StopRequest, Workload
from commonage.ports.clock import Clock
from commonage.ports.execs import NotRunning

MAX_NAMES, MAX_NAME = 8, 64
Limit = tuple[float, Reason]
"""Until when, and why not longer."""


@dataclass(slots=True)
class Extensions:
    queries: WorkloadQueries
    live_state: LiveState
    writer: Writer
    idle: Idle
    clock: Clock
    settings: ControlSettings

    async def report(
        self, principal: Principal, workload_id: str, attempt: int, idle_s: float, activity: Activity
    ) -> tuple[Sequence[SessionNotice], float]:
        """Take a session's report that it is idle for `idle_s`. Returns notices, and the seconds until the next report.

        Allowed to the session's own token, and to users who may enter it. Raises NotFound, Forbidden, NotRunning.
        """
        principal.need(Scope.SUBMIT)
        session = await self.queries.workload(principal, workload_id)
        self.queries.need(Permission.ENTER_WORKLOADS, principal, session)
        running = self.live_state.get(workload_id)
        if running is None or running.attempt is None or running.attempt.number != attempt:
            raise NotRunning(f"{workload_id} has no running attempt {attempt}")
        now = self.clock.now()
        # The clock of its node may differ, so it says for how long.
        active_at = now if activity.busy else now - max(0.0, idle_s)
        names = tuple(name[:MAX_NAME] for name in activity.programs[:MAX_NAMES])
        noted = replace(activity, reported_at=now, active_at=active_at, programs=names)
        self.idle.note(running.attempt.id, noted)
        return self.idle.notices(running), report_interval_s(self.idle.rule_of(running.spec))

    async def extend(self, principal: Principal, workload_id: str, for_s: float) -> Workload:
        """Keep it for at least `for_s` from now: neither its time limit nor idleness ends it before.

        It is kept for less where quota, maximum age or a reservation allow no more; then the event says why. Raises
        NotFound, Forbidden, NotRunning, and Conflict if they allow nothing.
        """
        workload = await self._running(principal, workload_id)
        if for_s <= 0:
            raise InvalidInput("a duration above 0 is needed, like 2h", field="for_s", code="invalid-time")
        now, deadline = self.clock.now(), workload.deadline
        if deadline is None and workload.spec.kind is not Kind.SESSION:
            raise Conflict(NothingToExtend(), code="extension-refused")
        until, why = now + for_s, None
        for limit_at, reason in self._limits(workload, until, now):
            if limit_at < until:
                until, why = limit_at, reason
        kept_until = max(now, workload.kept_until or 0.0, deadline or 0.0)
        if why is not None and until <= kept_until:
            raise Conflict(why, code="extension-refused")
        kept = Kept(by=principal.name, until_at=until, limit=why)
        return await self.writer.apply(workload_id, Extended(until, kept)) or workload

    def _limits(self, workload: Workload, until: float, now: float) -> list[Limit]:
        found = [self._hours(workload, now)]
        if workload.deadline is not None and until > workload.deadline:
            found += [self._age(workload), self._reservation(workload, until, now)]
        return [one for one in found if one is not None]

    def _hours(self, workload: Workload, now: float) -> Limit | None:
        """When the GPU-hours of its quota are used up, as far as it alone uses them."""
        allocated = self.live_state.snapshot.allocated.get(workload.id)
        left = None if allocated is None else self.live_state.snapshot.quotas.limits.gpu_time_left(allocated, now)
        return None if left is None else (now + left, GpuHoursLimit(left_s=left))

    def _age(self, workload: Workload) -> Limit | None:
        attempt, most = workload.attempt, self.idle.rule_of(workload.spec).max_age_s
        if workload.spec.kind is not Kind.SESSION or attempt is None or not most:
            return None
        return (attempt.started_at or attempt.allocation.at) + most, MaxAgeReached(max_age_s=most)

    def _reservation(self, workload: Workload, until: float, now: float) -> Limit | None:
        """The first begin of a reservation that would lack room if it ran until then."""
        snapshot = self.live_state.snapshot
        allocated, reservations = snapshot.allocated.get(workload.id), snapshot.rules.reservations
        if allocated is None or not reservations:
            return None
        snapshot.refresh(now)
        missing = {one.id: snapshot.reserved.missing(one.id) for one in reservations}
        with snapshot.trial():
            snapshot.end(allocated)
            snapshot.start(replace(allocated, ends_at=until))
            snapshot.reserved.update(reservations, now)
            begins = [
                one.starts_at
                for one in reservations
                if one.starts_at < until and snapshot.reserved.missing(one.id) > missing[one.id]
            ]
        return None if not begins else (min(begins), RoomReserved(starts_at=min(begins)))

    async def release_gpu(self, principal: Principal, workload_id: str) -> Workload:
        """Stop the session, and have the hub start it again without its GPU: same home, environment and settings.

        Raises NotFound, Forbidden, NotRunning, Conflict.
        """
        workload = await self._running(principal, workload_id)
        spec = workload.spec
        if spec.kind is not Kind.SESSION or spec.request.gpu is None:
            raise Conflict(NoGpuToRelease(is_session=spec.kind is Kind.SESSION), code="no-gpu")
        if self.idle.meetings.are_on(spec):
            raise Conflict(ClassKeepsGpu(class_name=spec.class_name), code="no-gpu")
        if not self.idle.may_release(spec):
            raise Conflict(EnvironmentNeedsGpu(environment=spec.environment), code="no-gpu")
        released = GpuReleased(by=principal.name)
        stop = StopRequest(principal.name, self.clock.now(), StopCause.GPU_RELEASE, released)
        return await self.writer.apply(workload_id, StopRequested(stop)) or workload

    async def _running(self, principal: Principal, workload_id: str) -> Workload:
        """The workload, if the principal may stop it. Raises NotRunning."""
        principal.need(Scope.SUBMIT)
        self.queries.need(Permission.STOP_WORKLOADS, principal, await self.queries.workload(principal, workload_id))
        workload = self.live_state.get(workload_id)
        if workload is None or workload.state is not State.RUNNING or workload.stop is not None:
            raise NotRunning(
                f"{workload_id} is not running; only a running workload can be extended or release its GPU"
            )
        return workload
