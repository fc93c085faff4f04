"""Queries: what a principal may see. Live workloads come from memory, ended ones from the store.

`notices` are for a user's next visit: sessions that ended because of their node, or whose node has a problem. The
portal's front page shows them, and, through the launch options, the hub's form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from commonage.control.access import access_of
from commonage.control.loops.session_restarts import ended_by_platform, gave_gpu_back, restarts_of, should_restart
from commonage.control.queries.visibility import visible_explanation, visible_workload
from commonage.control.settings import ControlSettings
from commonage.control.state.feed import Feed
from commonage.control.state.live_state import LiveState
from commonage.control.usage.idle import Idle, Offer
from commonage.domain.errors import InvalidInput, NotFound
from commonage.domain.explanations import Explanation
from commonage.domain.idle import ActivityState
from commonage.domain.nodes import Node, NodeKey, NodeState
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import (
    Fate,
    NodeHasFault,
    NodeMustBeEmpty,
    NodeNotResponding,
    NodeUndecided,
    SessionEnded,
    SessionNodeFaulty,
    SessionRestarted,
    SessionWarned,
)
from commonage.domain.reasons.refusals import NoSuchAttempt
from commonage.domain.services import ServiceHealth
from commonage.domain.statuses import LogLine
from commonage.domain.usage import Usage
from commonage.domain.workloads import Attempt, Event, Kind, State, StopCause, Workload
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.ports.metrics import Metrics, Point
from commonage.ports.store import Filter, Page, Store, Visible
from commonage.scheduler.autoscaling import expected_node
from commonage.scheduler.explain.explain import explain, why_waiting
from commonage.scheduler.explain.shortfalls import over_quota
from commonage.scheduler.model.shapes import QueuedRequest

LONGEST_S = 24 * 3600.0
_BEING_STARTED_S = 60.0
_LOOK_BACK = 30


@dataclass(frozen=True, slots=True)
class StateDetails:
    """Why a workload is in its present state, and its position in the queue from 1 (None if it is not queued).

    `notes` are further facts for its owner: a problem with its node, a node that was requested. `progress` (0..1) is
    the progress of its start if known, for example of its image pull. `activity` and `active_at`, the last sign of use,
    are of a running session, `health` of a running service.
    """

    reason: Reason
    position: int | None = None
    notes: tuple[Reason, ...] = ()
    progress: float | None = None
    activity: ActivityState | None = None
    active_at: float | None = None
    health: ServiceHealth | None = None


@dataclass(slots=True)
class WorkloadQueries:
    store: Store
    live_state: LiveState
    feed: Feed
    engines: Mapping[str, Engine]
    metrics_store: Metrics
    clock: Clock
    settings: ControlSettings
    idle: Idle

    async def workload(self, principal: Principal, workload_id: str) -> Workload:
        """One workload. Raises NotFound, also if the caller may not see it."""
        principal.need(Scope.READ)
        found = self.live_state.get(workload_id)
        if found is None:
            found = await self.store.workload(workload_id)
        access = access_of(principal, self.settings)
        if not access.may_on(Permission.SEE_WORKLOADS, found.spec.owner, found.spec.tenant):
            raise NotFound(f"there is no workload {workload_id}", code="workload-not-found")
        return visible_workload(found, access)

    def need(self, permission: Permission, principal: Principal, workload: Workload) -> None:
        """Raise Forbidden unless the principal may do this with a workload that it sees."""
        access_of(principal, self.settings).need_on(permission, workload.spec.owner, workload.spec.tenant)

    async def workloads(
        self, principal: Principal, which: Filter, *, limit: int, cursor: str | None = None
    ) -> Page[Workload]:
        """Newest first; those that the caller may see."""
        page = await self.store.workloads(self._allowed(principal, which), limit=limit, cursor=cursor)
        access = access_of(principal, self.settings)
        return Page([visible_workload(one, access) for one in page.items], page.next_cursor)

    async def counts(self, principal: Principal, which: Filter) -> dict[State, int]:
        return await self.store.count(self._allowed(principal, which))

    def _allowed(self, principal: Principal, which: Filter) -> Filter:
        principal.need(Scope.READ)
        visible = access_of(principal, self.settings).visible
        if visible is None or which.owner == visible.owner:
            return which
        if not visible.tenants:
            return replace(which, owner=visible.owner)
        return replace(which, visible=visible)

    async def attempts(self, principal: Principal, workload_id: str) -> Sequence[Attempt]:
        await self.workload(principal, workload_id)
        return await self.store.attempts(workload_id)

    def details(self, workload: Workload) -> StateDetails:
        """Why a workload is in its present state; for a queued one from the last plan."""
        queued = self.live_state.queued(workload.id)
        if queued is None:
            node_problem = self.node_problem(workload)
            progress = self.live_state.progress.get(workload.attempt.id) if workload.attempt is not None else None
            notes = (*(() if node_problem is None else (node_problem,)), *self.idle.notes(workload))
            activity, state = self.idle.activity_of(workload), self.idle.state_of(workload)
            active_at = activity.active_at if activity is not None and state is not ActivityState.UNKNOWN else None
            is_service = workload.spec.kind is Kind.SERVICE and workload.state is State.RUNNING
            attempt_id = "" if workload.attempt is None else workload.attempt.id
            return StateDetails(
                workload.reason,
                notes=notes,
                progress=progress,
                activity=state,
                active_at=active_at,
                health=self.live_state.service_health.get(attempt_id, ServiceHealth.STARTING) if is_service else None,
            )
        position = self.live_state.position(workload.id, self.clock.now())
        if self.live_state.outcome is None or position is None:
            return StateDetails(workload.reason, position)
        reason = why_waiting(self.live_state.snapshot, self.live_state.outcome, queued, position)
        pending_node = self._pending_node(queued)
        return StateDetails(reason, position, () if pending_node is None else (pending_node,))

    def _pending_node(self, queued: QueuedRequest) -> Reason | None:
        """The requested node that could run it; None if no node was requested, or a quota holds the workload back."""
        snapshot = self.live_state.snapshot
        pending_node = [
            one
            for one in self.live_state.pending_nodes
            if NodeKey(one.policy.site, one.name) not in self.live_state.nodes
        ]
        if not pending_node or over_quota(snapshot, queued, snapshot.grid.shape(queued.request)) is not None:
            return None
        return expected_node(pending_node, queued.request, self.clock.now())

    def node_problem(self, workload: Workload) -> Reason | None:
        node = self.live_state.nodes.get(workload.attempt.allocation.node_key) if workload.attempt is not None else None
        return node_problem(workload, node, self.clock.now())

    async def explain(self, principal: Principal, workload_id: str) -> Explanation:
        workload = await self.workload(principal, workload_id)
        queued = self.live_state.queued(workload_id)
        if queued is None:
            details = self.details(workload)
            reasons = (details.reason, *details.notes)
            return Explanation(workload_id, reasons, self.clock.now(), queue_length=self.live_state.queue_length())
        found = explain(self.live_state.snapshot, queued, self.clock.now())
        found = visible_explanation(found, access_of(principal, self.settings), self.live_state.nodes.values())
        return found if found.startable_now else replace(found, pending_node=self._pending_node(queued))

    def queue_length(self) -> int:
        return self.live_state.queue_length()

    def live_counts(self) -> dict[State, int]:
        return self.live_state.counts()

    async def events(
        self, principal: Principal, *, after: int = 0, workload_id: str | None = None, limit: int = 500
    ) -> Sequence[Event]:
        """Events with seq > after, oldest first; those that the caller may see."""
        principal.need(Scope.READ)
        if workload_id is not None:
            await self.workload(principal, workload_id)
        visible = None if workload_id is not None else access_of(principal, self.settings).visible
        return await self.store.events(after=after, workload_id=workload_id, visible=visible, limit=limit)

    async def follow(
        self, principal: Principal, *, after: int | None = None, workload_id: str | None = None
    ) -> AsyncIterator[Event]:
        """Events after `after` (None: from now on), then new ones as they are written, without gap or repetition."""
        principal.need(Scope.READ)
        if workload_id is not None:
            await self.workload(principal, workload_id)
        visible = access_of(principal, self.settings).visible
        with self.feed.listen() as live:
            last = after if after is not None else await self.store.last_event_seq()
            while after is not None:
                page = await self.events(principal, after=last, workload_id=workload_id)
                for event in page:
                    last = event.seq
                    yield event
                if len(page) < 500:
                    break
            async for event in live:
                if event.seq > last and _concerns(event, visible, workload_id):
                    last = event.seq
                    yield event

    async def logs(
        self,
        principal: Principal,
        workload_id: str,
        *,
        attempt: int | None = None,
        offset: int = 0,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Output of its newest attempt, or of the given one. Raises NotFound before the first line."""
        workload = await self.workload(principal, workload_id)
        self.need(Permission.READ_OUTPUT, principal, workload)
        tries = await self.store.attempts(workload_id) if attempt is not None else []
        chosen = workload.attempt if attempt is None else next((one for one in tries if one.number == attempt), None)
        if chosen is None:
            raise NotFound(NoSuchAttempt(workload_id=workload_id, attempt=attempt), code="log-not-found")
        engine = self._engine_of(chosen)
        async for line in engine.logs(chosen.id, offset=offset, tail=tail, follow=follow):
            yield line

    def _engine_of(self, attempt: Attempt) -> Engine:
        engine = self.engines.get(attempt.allocation.site)
        if engine is None:
            raise NotFound(f"the site {attempt.allocation.site} is gone, and its logs with it", code="log-not-found")
        return engine

    async def usage(self, principal: Principal, *, since: float, until: float, by: str) -> Sequence[Usage]:
        """Allocated resources times hours within [since, until): of the workloads that the caller may see.

        By tenant, the totals of the tenants that the caller may see.
        """
        principal.need(Scope.READ)
        if by not in ("owner", "tenant", "workload", "environment"):
            raise InvalidInput(
                f"usage by {by[:40]!r} is not known; by owner, tenant, workload or environment", field="by"
            )
        until = min(until, self.clock.now())
        access = access_of(principal, self.settings)
        visible = access.visible
        if visible is not None and by == "tenant":
            visible = replace(visible, tenants=visible.shared)
        return await self.store.usage(since=since, until=until, by=by, visible=visible)

    async def workload_usage(self, principal: Principal, workload_id: str) -> Usage:
        await self.workload(principal, workload_id)
        now = self.clock.now()
        found = await self.store.usage(since=0.0, until=now, by="workload", workload_id=workload_id)
        return found[0] if found else Usage(workload_id, 1, 0.0, 0.0, 0.0, 0.0)

    async def metrics(
        self,
        principal: Principal,
        subject: str,
        *,
        metrics: Sequence[str],
        since: float,
        until: float,
        points: int = 200,
    ) -> dict[str, Sequence[Point]]:
        """Measurements of `attempt:ID` (the caller's own), `node:SITE/NAME`, `device:SITE/UUID` or
        `platform`.

        A metric without measurements is left out.
        """
        principal.need(Scope.READ)
        if subject.startswith("attempt:"):
            await self.workload(principal, subject.removeprefix("attempt:").rpartition("-")[0])
        found = {}
        for metric in metrics:
            series = await self.metrics_store.query(metric, subject, since=since, until=until, points=points)
            if series:
                found[metric] = series
        return found


def _concerns(event: Event, visible: Visible | None, workload_id: str | None) -> bool:
    if workload_id is not None:
        return event.workload_id == workload_id
    return visible is None or visible.has(event.owner, event.tenant)


def node_problem(workload: Workload, node: Node | None, now: float) -> Reason | None:
    if not workload.state.holds_allocation or workload.stop is not None or node is None:
        return None
    silent = node.state is NodeState.LOST or (node.state is NodeState.FAULTY and not node.report.faults)
    if silent:
        silent_s = now - node.observed_at
        if node.report.awaits_admin is not None:
            return NodeUndecided(node=node.key.label, cause=node.report.awaits_admin, silent_s=silent_s)
        return NodeNotResponding(node=node.key.label, fate=_once_lost(workload), silent_s=silent_s)
    if node.report.faults:
        return NodeHasFault(node=node.key.label, fate=_once_lost(workload))
    if node.drain and node.leave_by is not None:
        return NodeMustBeEmpty(node=node.key.label, by=node.drained_by, left_s=node.leave_by - now)
    return None


def _once_lost(workload: Workload) -> Fate:
    spec = workload.spec
    if spec.kind is Kind.SESSION:
        return Fate.SESSION_RESTARTS if spec.requeue else Fate.SESSION_ENDS
    return Fate.REQUEUED if spec.requeue else Fate.ENDS


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice about the newest session of a name. `ended`: no session of that name runs now.

    `offers` are what its owner can do about it.
    """

    reason: Reason
    workload: Workload
    ended: bool
    offers: tuple[Offer, ...] = ()


async def notices(queries: WorkloadQueries, principal: Principal) -> Sequence[Notice]:
    """At most one notice for each session name, newest first; nothing older than a day."""
    page = await queries.workloads(principal, Filter(owner=principal.name, kinds=(Kind.SESSION,)), limit=_LOOK_BACK)
    by_name: dict[str, list[Workload]] = {}
    for one in page.items:
        by_name.setdefault(one.spec.name, []).append(one)
    found = [_of(queries, sessions) for sessions in by_name.values()]
    return [one for one in found if one is not None]


def _of(queries: WorkloadQueries, sessions: Sequence[Workload]) -> Notice | None:
    """Notice about the newest of these sessions, which share one name."""
    newest, now = sessions[0], queries.clock.now()
    name = newest.spec.name
    if not newest.state.is_terminal:
        if node_problem := queries.node_problem(newest):
            return Notice(SessionNodeFaulty(name=name, cause=node_problem), newest, False)
        for one in queries.idle.notices(newest):
            return Notice(SessionWarned(name=name, cause=one.reason), newest, False, one.offers)
        before = next((one for one in sessions[1:] if _ended_unasked(one)), None)
        if before is None or not restarts_of(newest) or now - newest.submitted_at > LONGEST_S:
            return None
        return Notice(SessionRestarted(name=name, cause=before.reason), newest, False)
    if not _ended_unasked(newest) or now - newest.since > LONGEST_S:
        return None
    soon = should_restart(newest) and now - newest.since < _BEING_STARTED_S
    return Notice(SessionEnded(name=name, cause=newest.reason, is_restarting=soon), newest, True)


def _ended_unasked(session: Workload) -> bool:
    """True if it ended although its user did not stop it, or to continue without its GPU."""
    was_idle = session.stop is not None and session.stop.cause is StopCause.IDLE
    return was_idle or gave_gpu_back(session) or ended_by_platform(session)
