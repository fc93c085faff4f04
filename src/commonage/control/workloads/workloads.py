"""Submits and stops workloads: the two changes that users make."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from commonage.control.access import access_of
from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.loops.timers import judge
from commonage.control.offboarding.names import Names
from commonage.control.queries.launch import check_mountable
from commonage.control.queries.node_views import NodeViews
from commonage.control.queries.visibility import visible_explanation
from commonage.control.settings import ControlSettings
from commonage.control.state.drafts import Rows
from commonage.control.state.live_state import LiveState, request_from_spec
from commonage.control.state.writer import Writer
from commonage.control.usage.quota_use import QuotaUses
from commonage.control.workloads.admission import LiveLimits, check_sites, never
from commonage.control.workloads.bundles import UserBundles
from commonage.control.workloads.submission import Submission, spec_of
from commonage.domain.errors import Conflict, InvalidInput, NotFound, Unavailable, Unschedulable
from commonage.domain.explanations import Explanation
from commonage.domain.lifecycle import StopRequested
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import ServerStopped, StoppedBy
from commonage.domain.reasons.notes import QuotaUse
from commonage.domain.reasons.waiting import DependencyNotMet, InQueue, Other
from commonage.domain.requests import format_cpus
from commonage.domain.workloads import IdSequence, Kind, Spec, State, StopCause, StopRequest, Workload
from commonage.ports.clock import Clock
from commonage.ports.identity import Identity
from commonage.ports.store import Filter, Store
from commonage.scheduler.explain.explain import explain

log = logging.getLogger(__name__)
_HUB_AGAIN_S = 0.5
HUB = "hub"  # the name of the hub's spawner as a principal


def _is_spawner(principal: Principal) -> bool:
    return principal.name == HUB and principal.holds(Scope.ADMIN)  # users may have any name


@dataclass(frozen=True, slots=True)
class Submitted:
    """The workload that a submit made, or that an earlier one with the same key had made (`created` False)."""

    workloads: tuple[Workload, ...]
    created: bool


@dataclass(slots=True)
class Workloads:
    """Admits submissions and handles stops. `chance` returns a random integer below its argument."""

    store: Store
    live_state: LiveState
    writer: Writer
    catalogue: Catalogue
    node_views: NodeViews
    identity: Identity
    bundles: UserBundles
    clock: Clock
    settings: ControlSettings
    ids: IdSequence
    chance: Callable[[int], int]
    live_limits: LiveLimits
    quota_uses: QuotaUses
    names: Names

    async def submit(self, principal: Principal, submission: Submission) -> Submitted:
        """Admit a submission; durable when this returns.

        Raises InvalidInput, TooLarge, TooMany, Forbidden, Unschedulable, Conflict. A session submitted by a user goes
        through the hub, whose spawner submits it in turn.
        """
        principal.need(Scope.SUBMIT)
        spec = spec_of(submission, principal, self.catalogue, self.settings)
        self.names.check(spec.owner, spec.tenant)
        before = await self._by_key(spec)
        if before is not None:
            return before
        self.check_schedulable(principal, spec)
        if spec.kind is Kind.SESSION and not _is_spawner(principal):
            return Submitted((await self.start_session_by_hub(spec),), True)
        state, reason = await self._initial_state(principal, spec)
        workloads = self._made(spec, state, reason)
        await self.bundles.claim(principal, spec)
        try:
            with self.live_limits.reserve(spec, workloads[0].id):
                await self.writer.insert(workloads)
        except Conflict:
            # The same key was used twice at the same time: the other submission made the workload.
            taken = await self._by_key(spec)
            if taken is None:
                raise
            return taken
        return Submitted(workloads, True)

    async def submit_run(
        self, spec: Spec, first_id: str | None, rows_of: Callable[[Sequence[Workload]], Rows]
    ) -> Submitted:
        """Queue a run of a cron job, and write `rows_of` it in the same transaction; nothing if its key was used.

        `first_id` is the id of its (first) workload; None: a new one. Raises the errors of `submit`.
        """
        self.names.check(spec.owner, spec.tenant)
        owner = Principal(spec.owner, frozenset({Scope.SUBMIT}))
        before = await self._by_key(spec)
        if before is not None:
            return before
        self.check_schedulable(owner, spec)
        runs = self._made(spec, State.QUEUED, InQueue(), first_id)
        await self.bundles.claim(owner, spec)
        with self.live_limits.reserve(spec, runs[0].id):
            await self.writer.insert(runs, **rows_of(runs))
        return Submitted(runs, True)

    def check_schedulable(self, principal: Principal, spec: Spec) -> None:
        """Raise Unschedulable, TooMany, NotFound or InvalidInput if it cannot be submitted."""
        check_sites(self.live_state, spec)
        why = never(self.live_state, spec)
        if why is not None:
            raise Unschedulable(why)
        self.live_limits.check(spec)
        if spec.bundle is not None:
            self.bundles.find(principal, spec)
        check_mountable(spec.volumes, self.node_views.capabilities())

    async def _by_key(self, spec: Spec) -> Submitted | None:
        if spec.key is None:
            return None
        found = await self.store.workload_by_key(spec.owner, spec.key)
        if found is None:
            return None
        if (found.spec.kind, found.spec.command, found.spec.request) != (spec.kind, spec.command, spec.request):
            raise Conflict(
                f"the key {spec.key!r} was used before for a different workload ({found.id}); use a new key",
                code="key-reused",
            )
        if found.spec.array_id is None:
            return Submitted((found,), False)
        members = await self.store.workloads(Filter(array_id=found.spec.array_id), limit=found.spec.array_size)
        return Submitted(tuple(reversed(members.items)), False)

    def _made(self, spec: Spec, state: State, reason: Reason, first_id: str | None = None) -> tuple[Workload, ...]:
        now = self.clock.now()
        first = first_id or self.ids.next(now, self.chance(1 << 20))
        if not spec.array_size:
            return (Workload(first, spec, state, now, now, reason),)
        spec = replace(spec, array_id=first)
        rest = replace(spec, key=None)  # the key stands for the whole array: only its first member carries it
        others = [self.ids.next(now, 0) for _ in range(spec.array_size - 1)]
        return (
            Workload(first, spec, state, now, now, reason, 0),
            *(Workload(member, rest, state, now, now, reason, index) for index, member in enumerate(others, 1)),
        )

    async def _initial_state(self, principal: Principal, spec: Spec) -> tuple[State, Reason]:
        """Queued, or held if a dependency is not met yet."""
        others, access = list[Other](), access_of(principal, self.settings)
        for dependency in spec.depends_on:
            other = await self.known(dependency.workload_id)
            if other is None or not (
                access.may_on(Permission.SEE_WORKLOADS, other.spec.owner, other.spec.tenant)
                or other.spec.owner == spec.owner
            ):
                raise InvalidInput(
                    f"it depends on {dependency.workload_id[:60]!r}, which does not exist",
                    field="depends_on",
                    code="unknown-dependency",
                )
            found = judge(dependency.condition, other)
            if isinstance(found, Reason):
                raise Conflict(found, code="dependency-broken")
            if found is not None:
                others.append(found)
        return (State.HELD, DependencyNotMet(others=tuple(others))) if others else (State.QUEUED, InQueue())

    async def known(self, workload_id: str) -> Workload | None:
        """The workload, live or ended. Raises Unavailable."""
        try:
            return self.live_state.get(workload_id) or await self.store.workload(workload_id)
        except NotFound:
            return None

    async def start_session_by_hub(self, spec: Spec) -> Workload:
        """Have the hub start the session, and wait for its spawner to submit it under the same key.

        While the hub has not seen the end of the session before, it refuses, and is asked again. Raises Conflict,
        InvalidInput and NotFound from the hub, and Unavailable.
        """
        key = spec.key or f"session-{self.ids.next(self.clock.now(), self.chance(1 << 20))}"
        request = spec.request
        options: dict[str, Any] = {
            "environment": spec.environment,
            "cpus": format_cpus(request.cpus_milli),
            "memory": f"{request.memory_mib}MiB",
            "key": key,
            "tenant": spec.tenant,
            "priority": spec.priority,
            "preemptible": spec.preemptible,
            "on": dict(request.labels),
            "one_numa": request.one_numa,
            "near": spec.near or None,
            "class_meeting": spec.class_meeting or None,
            "grace": f"{spec.grace_s}s",
            "requeue": "true" if spec.requeue else None,
            "gpus": None if request.gpu is None else request.gpu.text,
            "time": None if spec.time_limit_s is None else f"{spec.time_limit_s}s",
            "volumes": [volume.text for volume in spec.volumes] or None,
            "variables": dict(spec.variables) or None,
        }
        options = {name: option for name, option in options.items() if option is not None}
        # The hub answers when the session runs, or after two seconds; its spawner has submitted it long before.
        starting = self._ask_hub(spec, options)
        give_up = self.clock.now() + self.settings.session_appears_within_s
        while True:
            # Before the look at the store: all workloads submitted until then are found.
            is_last, refused = self.clock.now() >= give_up, starting.done()
            found = await self.store.workload_by_key(spec.owner, key)
            if found is not None:
                return found
            if refused and (conflict := _conflict_of(starting)) is not None:
                if self._lives(spec) or self.clock.now() + _HUB_AGAIN_S >= give_up:
                    raise conflict
                await self.clock.sleep(_HUB_AGAIN_S)
                starting = self._ask_hub(spec, options)
            if is_last:
                raise Unavailable("the hub has not submitted the session yet; try again in a moment")
            await self.clock.sleep(0.05)

    def _ask_hub(self, spec: Spec, options: Mapping[str, Any]) -> asyncio.Task[None]:
        starting = asyncio.create_task(self.identity.start_session(spec.owner, spec.name, options))
        starting.add_done_callback(_retrieve_error)
        return starting

    def _lives(self, spec: Spec) -> bool:
        """Whether a session of that owner and name is live."""
        name = (Kind.SESSION, spec.owner, spec.name)
        live = (one for one in self.live_state if not one.state.is_terminal)
        return any((one.spec.kind, one.spec.owner, one.spec.name) == name for one in live)

    async def dry_run(self, principal: Principal, submission: Submission) -> Explanation:
        """Explain what would happen to this submission now. Raises what `submit` would raise."""
        principal.need(Scope.SUBMIT)
        spec = spec_of(submission, principal, self.catalogue, self.settings)
        self.names.check(spec.owner, spec.tenant)
        self.check_schedulable(principal, spec)
        state, reason = await self._initial_state(principal, spec)
        now, quotas = self.clock.now(), self._quotas(spec)
        if state is State.HELD:
            length = self.live_state.queue_length()
            return Explanation(None, (reason,), now, queue_length=length, quotas=quotas)
        considered = request_from_spec(spec, "", now)
        if spec.gang:
            considered = replace(considered, gang="considered", gang_size=max(1, spec.array_size))
        found = explain(self.live_state.snapshot, considered, now)
        access = access_of(principal, self.settings)
        shown = visible_explanation(found, access, self.live_state.nodes.values())
        return replace(shown, workload_id=None, quotas=quotas)

    def _quotas(self, spec: Spec) -> tuple[QuotaUse, ...]:
        tenant = self.live_state.snapshot.rules.tenant(spec.tenant)
        return tuple(self.quota_uses.of(tenant, spec.owner, spec.environment))

    async def stop(self, principal: Principal, workload_id: str, reason: str = "") -> Workload:
        """Request a stop. Raises NotFound, Conflict(code="already-ended"). Repeated requests have no further effect."""
        principal.need(Scope.SUBMIT)
        workload, access = await self.known(workload_id), access_of(principal, self.settings)
        if workload is None or not access.may_on(Permission.SEE_WORKLOADS, workload.spec.owner, workload.spec.tenant):
            raise NotFound(f"there is no workload {workload_id}", code="workload-not-found")
        access.need_on(Permission.STOP_WORKLOADS, workload.spec.owner, workload.spec.tenant)
        by = workload.spec.owner if _is_spawner(principal) else principal.name
        cause = StopCause.USER if by == workload.spec.owner else StopCause.ADMIN
        stop = StopRequest(by, self.clock.now(), cause, StoppedBy(by=by, comment=reason))
        after = await self.writer.apply(workload_id, StopRequested(stop))
        if after is None or (after.state.is_terminal and after.stop is None):
            ended = await self.store.workload(workload_id)
            raise Conflict(
                f"{workload_id} has already ended: {str(ended.state).replace('_', ' ')}", code="already-ended"
            )
        return after

    async def stop_all(self, within_s: float = 20.0) -> int:
        """Before the node shuts down: stop the running workloads of its site. Sessions end for good, other work is
        requeued. Workloads of other sites continue.

        Returns how many workloads still ran after `within_s` seconds. The schedule loop must be paused.
        """
        now = self.clock.now()
        for workload in self._of_local_site():
            cause = StopCause.ADMIN if workload.spec.kind is Kind.SESSION else StopCause.EVICTION
            self.writer.note(workload.id, StopRequested(StopRequest("the server", now, cause, ServerStopped())))
        while (left := len(self._of_local_site())) and self.clock.now() < now + within_s:
            await self.clock.sleep(0.05)
        return left

    def _of_local_site(self) -> list[Workload]:
        running = self.live_state.in_state(State.STARTING, State.RUNNING)
        return [one for one in running if one.attempt is not None and one.attempt.allocation.site == LOCAL_SITE]


def _conflict_of(starting: asyncio.Task[None]) -> Conflict | None:
    """The conflict in which a request to the hub ended, None if it was accepted. Raises other errors."""
    try:
        starting.result()
    except Conflict as conflict:
        return conflict
    return None


def _retrieve_error(starting: asyncio.Task[None]) -> None:
    """Retrieve the error: a failure after the session has been submitted shows in the session itself."""
    if not starting.cancelled():
        starting.exception()
