"""Cron jobs: users create, suspend, trigger and remove them; one loop fires them.

A run is an ordinary workload. It is written together with the time that it was decided for, under an id and a key made
from cron job and time: whenever the process is killed, no run is lost and none is there twice. The runs that a site
fires while its link is down are adopted here; `cron_sites` hands cron jobs over to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from commonage.control.access import Access, access_of
from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.queries.visibility import visible_spec
from commonage.control.settings import ControlSettings
from commonage.control.signals import cancel_all, wait_at_most
from commonage.control.state.drafts import Rows
from commonage.control.state.feed import event_of
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.workloads.bundles import UserBundles
from commonage.control.workloads.submission import Submission, spec_of
from commonage.control.workloads.workloads import Submitted, Workloads
from commonage.domain.cron_jobs import CronJob, CronRule, Decision, Overlap, decide, run_id, run_key, slot_of
from commonage.domain.errors import (
    CommonageError,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    TooMany,
    Unavailable,
    start_failure,
)
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import StopRequested, started_by_site
from commonage.domain.nodes import Allocation, Node
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.cron_jobs import (
    CronJobCreated,
    CronJobHandedOver,
    CronJobRemoved,
    CronJobResumed,
    CronJobSuspended,
    CronJobTriggered,
    CronRunRefused,
    CronRunsMissed,
    OwnerMayNotSubmit,
    ReplacedByNextRun,
    SiteFiresCronJob,
    StartedBySite,
)
from commonage.domain.requests import Request, part_of
from commonage.domain.workloads import (
    TERMINAL,
    Event,
    EventKind,
    IdSequence,
    Kind,
    Spec,
    State,
    StopCause,
    StopRequest,
    Workload,
    attempt_id,
)
from commonage.ports.clock import Clock
from commonage.ports.cron_sites import CronSite, SiteRun
from commonage.ports.store import Filter, Store

log = logging.getLogger(__name__)
MAX_PER_USER = 100
MAX_KEPT = 1000
LONGEST_REST_S = 5.0
RETRY_S = 5.0
MAX_AHEAD_S = 3600.0
_MEASURED_AGAIN = 1.1  # a new driver, or ECC, changes the memory of a GPU, and so the part that a request is of it
"""A site may decide a time this long before it is due here: its clock is not exact."""
MAX_LIVE_RUNS = 2000
"""Beyond these, runs of a cron job that its site has started are ignored. A site agent decides 1,000 without a link."""
_HISTORY = 500


@dataclass(frozen=True, slots=True)
class NewCronJob:
    """A user's request for a cron job: what to run, and when."""

    submission: Submission
    rule: CronRule
    suspended: bool = False
    succeeded_kept: int | None = None
    failed_kept: int | None = None


@dataclass(slots=True)
class CronJobs:
    """All cron jobs. `chance` returns a random integer below its argument, `cron_site` the site of this name."""

    store: Store
    live_state: LiveState
    writer: Writer
    catalogue: Catalogue
    workloads: Workloads
    bundles: UserBundles
    clock: Clock
    settings: ControlSettings
    chance: Callable[[int], int]
    cron_site: Callable[[str], CronSite | None] = lambda _: None
    _ids: IdSequence = field(default_factory=IdSequence)
    _next: dict[str, float] = field(default_factory=dict)  # when to look at each again
    _waiting: dict[str, Reason] = field(default_factory=dict)  # why a due run is not submitted yet
    _claimed: dict[str, float] = field(default_factory=dict)  # up to when its site leaves the due times to this side
    _claiming: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)  # cron jobs whose history may have become too long
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # users and the loop write the same rows
    _in_doubt: bool = False  # the store failed while it wrote cron jobs: only it knows whether they were written
    iterations: Iterations = field(init=False)

    def __post_init__(self) -> None:
        self.iterations = Iterations("cron_jobs", self.clock.now)

    async def open(self) -> None:
        """Read all cron jobs from the store."""
        found = await self.store.cron_jobs()
        for gone in self.live_state.cron_jobs.keys() - {one.id for one in found}:
            self._forget(gone)
        for one in found:
            self.live_state.put_cron_job(one)
        self._ids.follow(max((one.id[1:] for one in found), default=None))
        self._ended.update(one.id for one in found)
        self._next.clear()
        self._changed.set()

    # --- queries ----------------------------------------------------------------------------------------------------

    def visible(self, principal: Principal) -> Sequence[CronJob]:
        """Those whose runs the caller may see, by owner and name; without the command if the caller may not read it."""
        principal.need(Scope.READ)
        access = access_of(principal, self.settings)
        seen = [one for one in self._present() if _sees(access, one)]
        return [_shown(one, access) for one in sorted(seen, key=lambda one: (one.owner, one.name, one.id))]

    def _present(self) -> Iterator[CronJob]:
        return (one for one in self.live_state.cron_jobs.values() if not one.removed)

    def one(self, principal: Principal, cron_job_id: str) -> CronJob:
        """Raises NotFound, also if the caller may not see it."""
        principal.need(Scope.READ)
        return _shown(self._found(principal, cron_job_id), access_of(principal, self.settings))

    def active(self, cron_job_id: str) -> Sequence[Workload]:
        """Its runs that have not ended, oldest first."""
        return sorted(self.live_state.runs_of(cron_job_id), key=lambda one: one.id)

    def waiting(self, cron_job_id: str) -> Reason | None:
        """Why a run that is due is not submitted yet; it is tried again."""
        return self._waiting.get(cron_job_id)

    # --- changes by users -------------------------------------------------------------------------------------------

    def considered(self, principal: Principal, wanted: NewCronJob) -> CronJob:
        """The cron job as `create` would make it; nothing is created. Raises what `create` raises."""
        principal.need(Scope.SUBMIT)
        wanted.rule.check()
        _check(wanted)
        spec = spec_of(replace(wanted.submission, key=None), principal, self.catalogue, self.settings)
        if spec.kind is not Kind.JOB:
            raise InvalidInput(f"only jobs repeat, not a {spec.kind}", field="kind", code="invalid-schedule")
        if spec.depends_on:
            raise InvalidInput(
                "a job that repeats cannot wait for another workload: the other one runs once. Remove the dependency.",
                field="depends_on",
                code="invalid-schedule",
            )
        self.workloads.names.check(spec.owner, spec.tenant)
        self.workloads.check_schedulable(principal, spec)
        self._check_owner(spec)
        now, access = self.clock.now(), access_of(principal, self.settings)
        return CronJob(
            id=self._new_id(now),
            spec=spec,
            rule=wanted.rule,
            created_at=now,
            decided_until=now,
            suspended=wanted.suspended,
            succeeded_kept=wanted.succeeded_kept,
            failed_kept=wanted.failed_kept,
            groups=principal.groups if spec.owner == principal.name else (),
            of_admin=access.may(Permission.SUBMIT),
        )

    async def create(self, principal: Principal, wanted: NewCronJob) -> CronJob:
        """Durable when this returns. Raises the errors of a submission; Conflict if the owner has one of this name."""
        async with self._changing:
            made = self.considered(principal, wanted)
            await self.bundles.claim(principal, made.spec)
            rule = made.rule
            created = CronJobCreated(
                by=principal.name, id=made.id, name=made.name, schedule=rule.schedule, time_zone=rule.time_zone
            )
            await self._write(made, created)
        return made

    async def suspend(self, principal: Principal, cron_job_id: str) -> CronJob:
        """Stop firing it until it is resumed; runs continue. Repeated requests have no further effect."""
        async with self._changing:
            found = self._changeable(principal, cron_job_id)
            if found.suspended:
                return found
            after = replace(found, suspended=True)
            await self._write(after, CronJobSuspended(by=principal.name, id=found.id, name=found.name))
        return after

    async def resume(self, principal: Principal, cron_job_id: str) -> CronJob:
        """Fire it again from now on."""
        async with self._changing:
            found = self._changeable(principal, cron_job_id)
            if not found.suspended:
                return found
            after = replace(found, suspended=False, decided_until=self.clock.now())
            await self._write(after, CronJobResumed(by=principal.name, id=found.id, name=found.name))
        return after

    async def remove(self, principal: Principal, cron_job_id: str) -> CronJob:
        """Remove it. Its runs are kept, and live ones continue."""
        async with self._changing:
            found = self._changeable(principal, cron_job_id)
            removed = CronJobRemoved(by=principal.name, id=found.id, name=found.name)
            if found.site is not None:  # it may have fired runs that it has not reported
                await self._write(replace(found, removed=True), removed)
            else:
                await self._delete(found, removed)
        return found

    async def _delete(self, found: CronJob, reason: Reason | None = None) -> None:
        with self._doubt():
            events = [] if reason is None else [self._event(found, EventKind.AUDIT, reason)]
            await self.writer.write(events=events, removed_cron_jobs=[found.id])
        self._forget(found.id)

    async def trigger(self, principal: Principal, cron_job_id: str, key: str | None = None) -> Submitted:
        """Run it now, outside its schedule, also if it is suspended. `key`: the same key gives the same run."""
        async with self._changing:
            found = self._found(principal, cron_job_id)
            access_of(principal, self.settings).need_on(Permission.ENTER_WORKLOADS, found.owner, found.tenant)
            if not self._may_submit(found):
                raise Forbidden(OwnerMayNotSubmit(owner=found.owner, tenant=found.tenant), code="not-a-member")
            spec = replace(found.spec, cron_job=found.id, key=f"{found.id}:{key}" if key else None)

            def rows_of(runs: Sequence[Workload]) -> Rows:
                by, run = principal.name, runs[0].id
                triggered = CronJobTriggered(by=by, id=found.id, name=found.name, workload_id=run)
                return {"events": [self._event(found, EventKind.AUDIT, triggered)]}

            return await self.workloads.submit_run(spec, None, rows_of)

    async def revise(self, by: str, revised: Callable[[CronJob], CronJob | None]) -> None:
        """Change or remove (None) all that `revised` does not return as they are: an owner or tenant goes.

        Repeating it changes nothing. Raises Conflict if an owner got a second one of the same name.
        """
        async with self._changing:

            def revision(one: CronJob) -> CronJob | None:
                after = revised(one)
                if after is None and one.site is not None:  # it may have fired runs that it has not reported
                    return replace(one, removed=True)
                return after

            all_of_them = list(self.live_state.cron_jobs.values())
            changed = [(one, after) for one in all_of_them if (after := revision(one)) != one]
            kept = [(one, after) for one, after in changed if after is not None and not after.removed]
            self._check_names([after for _, after in kept], {one.id for one, _ in changed})
            for one, after in kept:
                with suppress(NotFound):  # each run is refused with this error
                    await self.bundles.claim(Principal(one.owner, frozenset()), after.spec)
            events = [self._event(after or one, EventKind.AUDIT, _revised(by, one, after)) for one, after in changed]
            gone = [one.id for one, after in changed if after is None]
            written = [after for _, after in changed if after is not None]
            if events:
                with self._doubt():
                    await self.writer.write(cron_jobs=written, removed_cron_jobs=gone, events=events)
            for after in written:
                self._put(after)
            for cron_job_id in gone:
                self._forget(cron_job_id)

    def _check_names(self, changed: Sequence[CronJob], ids: Collection[str]) -> None:
        taken = {(one.owner, one.name) for one in self._present() if one.id not in ids}
        for one in changed:
            if (one.owner, one.name) in taken:
                raise Conflict(
                    f"{one.owner} has a cron job called {one.name!r} already, and cannot get {one.id} of the same "
                    f"name. Remove one of them with `commonage cron-job rm`.",
                    code="cron-job-exists",
                )

    def _new_id(self, now: float) -> str:
        """An id whose runs differ from those of all other cron jobs."""
        taken = {slot_of(one) for one in self.live_state.cron_jobs}
        while True:
            found = f"c{self._ids.next(now, self.chance(1 << 20))}"
            if slot_of(found) not in taken:
                return found

    def _check_owner(self, spec: Spec) -> None:
        mine = [one for one in self._present() if one.owner == spec.owner]
        same = next((one for one in mine if one.name == spec.name), None)
        if same is not None:
            raise Conflict(
                f"{spec.owner} has a cron job called {spec.name!r} already ({same.id}). Remove it first, or give this "
                "one another name.",
                code="cron-job-exists",
            )
        if len(mine) >= MAX_PER_USER:
            raise TooMany(
                f"Too many cron jobs: {spec.owner} has {len(mine)}, and {MAX_PER_USER} are allowed. Remove some.",
                code="too-many-cron-jobs",
            )

    def _found(self, principal: Principal, cron_job_id: str) -> CronJob:
        found = self.live_state.cron_jobs.get(cron_job_id)
        if found is None or found.removed or not _sees(access_of(principal, self.settings), found):
            raise NotFound(f"there is no cron job {cron_job_id[:60]!r}", code="cron-job-not-found")
        return found

    def _changeable(self, principal: Principal, cron_job_id: str) -> CronJob:
        found = self._found(principal, cron_job_id)
        access_of(principal, self.settings).need_on(Permission.STOP_WORKLOADS, found.owner, found.tenant)
        return found

    # --- the loop ---------------------------------------------------------------------------------------------------

    def ended(self, workload: Workload) -> None:
        """Called with each workload that was written."""
        if workload.spec.cron_job is not None and workload.state.is_terminal:
            self._ended.add(workload.spec.cron_job)
            self._changed.set()

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self.tick()
                except CommonageError as error:
                    log.warning("cron jobs wait for the store: %s", error)
                with self.iterations.rest():
                    await wait_at_most(self._rest(), self._changed, self.clock)
                self._changed.clear()
        finally:
            await cancel_all(list(self._claiming.values()))

    async def tick(self) -> None:
        if self.writer.stuck:
            return
        if self._in_doubt:
            async with self._changing:
                await self.open()
                self._in_doubt = False
        for cron_job_id in list(self.live_state.cron_jobs):
            now = self.clock.now()
            if self._next.get(cron_job_id, 0.0) <= now:
                self._next[cron_job_id] = now + RETRY_S  # if the turn fails
                async with self._changing:
                    await self._turn(cron_job_id)
        for cron_job_id in list(self._ended):
            await self._shorten_history(cron_job_id)
            self._ended.discard(cron_job_id)

    def _rest(self) -> float:
        if self.writer.stuck:
            return LONGEST_REST_S
        soonest = min(self._next.values(), default=float("inf"))
        return min(LONGEST_REST_S, max(0.05, soonest - self.clock.now()))

    async def _turn(self, cron_job_id: str) -> None:
        found = self.live_state.cron_jobs.get(cron_job_id)
        if found is None:  # removed meanwhile
            return
        site = None
        if found.site is not None and (site := self.cron_site(found.site)) is None:  # the site was removed
            await self._take_back(found)
            return
        if found.suspended or found.removed:
            # Its site may be removed before it has forgotten the cron job: look again.
            self._next[cron_job_id] = float("inf") if site is None else self.clock.now() + LONGEST_REST_S
            return
        active = self.active(cron_job_id)
        decision = decide(found.rule, found.decided_until, self.clock.now(), active[0].id if active else "")
        if decision is not None:
            held = self.workloads.names.held(found.owner, found.tenant)
            if held is not None:  # nothing is decided: afterwards the rule for missed runs applies
                self._waiting[cron_job_id] = held
                return
        if decision is not None and site is not None and self._claimed.get(found.id, 0.0) < decision.due_at:
            self._claim(found, site, decision.due_at)
            return
        if decision is None or await self._is_carried_out(found, decision, active):
            newest = self.live_state.cron_jobs[cron_job_id]
            self._next[cron_job_id] = next(iter(newest.next_times(self.clock.now(), 1)), float("inf"))

    def _claim(self, found: CronJob, site: CronSite, due_at: float) -> None:
        """Let the site leave this due time to the control plane, then fire it. Without a link, the site fires it."""
        if (why := site.unreachable) is not None:
            self._waiting[found.id] = SiteFiresCronJob(site=why.site, since=why.since)
        elif found.id not in self._claiming:
            claiming = asyncio.create_task(self._claimed_at(found.id, site, due_at), name=f"claim {found.id}")
            self._claiming[found.id] = claiming
            claiming.add_done_callback(lambda _: self._claiming.pop(found.id, None))

    async def _claimed_at(self, cron_job_id: str, site: CronSite, due_at: float) -> None:
        try:
            await site.claim(cron_job_id, due_at)
        except CommonageError as error:
            log.warning("cron job %s: its run is not submitted yet: %s", cron_job_id, error)
            self._waiting[cron_job_id] = start_failure(error)
            return
        self._claimed[cron_job_id] = due_at
        self._waiting.pop(cron_job_id, None)
        self._next.pop(cron_job_id, None)
        self._changed.set()

    async def _is_carried_out(self, found: CronJob, decision: Decision, active: Sequence[Workload]) -> bool:
        """False if the run could not be submitted for a reason that may pass."""
        refused = decision.refused
        if refused is None:
            try:
                await self._submit(found, decision, active)
                return True
            except CommonageError as error:
                if error.is_retryable:
                    self._waiting[found.id] = start_failure(error)
                    log.warning("cron job %s: its run is not submitted yet: %s", found.id, error)
                    return False
                refused = start_failure(error)
        await self._refuse(found, decision, refused)
        return True

    async def _refuse(self, found: CronJob, decision: Decision, refused: Reason) -> None:
        after = self._decided(found, decision, refused)
        why = CronRunRefused(
            id=found.id, name=found.name, due_at=decision.due_at, missed=decision.missed, cause=refused
        )
        await self._write(after, why, EventKind.WARNING)

    async def _submit(self, found: CronJob, decision: Decision, active: Sequence[Workload]) -> None:
        """Raises the errors of a submission; then nothing was decided."""
        due_at = decision.due_at
        if not self._may_submit(found):
            raise InvalidInput(OwnerMayNotSubmit(owner=found.owner, tenant=found.tenant))
        spec = replace(found.spec, key=run_key(found.id, due_at), cron_job=found.id, due_at=due_at)
        after, events = self._decided(found, decision, None), list[Event]()
        if decision.missed:
            missed = CronRunsMissed(id=found.id, name=found.name, due_at=due_at, missed=decision.missed)
            events.append(self._event(found, EventKind.WARNING, missed))
        if found.rule.overlap is Overlap.REPLACE:
            await self.stop_runs(found, due_at, active)
        with self._doubt():
            made = await self.workloads.submit_run(
                spec, run_id(found.id, due_at), lambda _: {"cron_jobs": [after], "events": events}
            )
            if not made.created:  # a client has used this key
                await self.writer.write(cron_jobs=[after])
        self._put(after)

    def _decided(self, found: CronJob, decision: Decision, refused: Reason | None) -> CronJob:
        return replace(found, decided_until=decision.due_at, last_due_at=decision.due_at, last_refused=refused)

    # --- sites that fire cron jobs themselves -----------------------------------------------------------------------

    async def hand_over(self, cron_job_id: str, site: str) -> None:
        """Before the site gets it: from now on each due time is claimed. Raises Unavailable."""
        async with self._changing:
            found = self.live_state.cron_jobs.get(cron_job_id)
            if found is not None and found.site is None and not found.removed:
                await self._put_site(found, site)

    async def taken_back(self, cron_job_id: str, site: str) -> None:
        """The site has forgotten it. Raises Unavailable."""
        async with self._changing:
            found = self.live_state.cron_jobs.get(cron_job_id)
            if found is not None and found.site == site:
                await self._take_back(found)

    async def _take_back(self, found: CronJob) -> None:
        if found.removed:
            await self._delete(found)
        else:
            await self._put_site(found, None)

    async def _put_site(self, found: CronJob, site: str | None) -> None:
        after = replace(found, site=site)
        with self._doubt():
            await self.writer.write(cron_jobs=[after])
        self._put(after)

    async def adopt(self, site: str, run: SiteRun) -> str | None:
        """Take over what the site decided without a link. Durable when this returns; repeating it has no effect.

        A run that was started becomes a workload, whatever has happened to the cron job meanwhile. One that never
        started is queued, as if it were due now. Returns the id of its attempt if that runs there. Raises Unavailable.
        """
        async with self._changing:
            found = self.live_state.cron_jobs.get(run.cron_job)
            if found is None or found.site != site or not self._is_due(found, run):
                log.warning("site %s reports a run of %s that is not its own: ignored", site, run.cron_job[:60])
                return None
            is_new = run.due_at > found.decided_until and not found.suspended and not found.removed
            if run.allocation is not None:
                if await self.workloads.known(run_id(found.id, run.due_at)) is None:
                    if len(self.live_state.runs_of(found.id)) >= MAX_LIVE_RUNS:
                        log.warning("site %s: %s has %s live runs: another is ignored", site, found.id, MAX_LIVE_RUNS)
                        return None
                    await self._adopt_started(found, run, run.allocation)
                attempt = run.allocation.attempt_id
                return attempt if self.live_state.of_attempt(attempt, site) is not None else None
            elif is_new and run.refused is not None:
                await self._refuse(found, self._decision_of(found, run), run.refused)
            elif is_new:
                await self._queue(found, self._decision_of(found, run))
            return None

    def _is_due(self, found: CronJob, run: SiteRun) -> bool:
        """Whether this due time is plausible, and the allocation is what the cron job requests of that node."""
        if not found.created_at < run.due_at < self.clock.now() + MAX_AHEAD_S:
            return False
        if found.rule.newest(run.due_at - 1, run.due_at) != run.due_at:
            return False
        allocation = run.allocation
        if allocation is None:
            return True
        node = self.live_state.nodes.get(allocation.node_key)
        own = allocation.attempt_id == attempt_id(run_id(found.id, run.due_at), 1)
        return own and node is not None and _is_given_to(found.spec.request, allocation, node)

    def _decision_of(self, found: CronJob, run: SiteRun) -> Decision:
        return Decision(run.due_at, found.rule.count(found.decided_until, run.due_at), run.refused)

    async def _queue(self, found: CronJob, decision: Decision) -> None:
        """Queue a run that the site had no room for. Raises Unavailable."""
        try:
            await self._submit(found, decision, [one for one in self.active(found.id) if one.state.waits])
        except Unavailable:
            raise
        except CommonageError as error:
            await self._refuse(found, decision, start_failure(error))

    async def _adopt_started(self, found: CronJob, run: SiteRun, allocation: Allocation) -> None:
        due_at = run.due_at
        key: str | None = run_key(found.id, due_at)
        if await self.store.workload_by_key(found.owner, run_key(found.id, due_at)) is not None:  # a client has used it
            key = None
        spec = replace(found.spec, key=key, cron_job=found.id, due_at=due_at)
        earliest = due_at - MAX_AHEAD_S  # a site may report any time, and its clock may be wrong
        at, allocation = max(run.at, earliest), replace(allocation, at=max(allocation.at, earliest))
        waiting = Workload(run_id(found.id, due_at), spec, State.QUEUED, at, at)
        adopted = started_by_site(waiting, allocation, allocation.at)
        said = StartedBySite(site=allocation.site, name=found.name, due_at=due_at)
        rows = Rows(events=[event_of(adopted, EventKind.STARTING, self.clock.now(), said)])
        after = found
        if due_at > found.decided_until:
            decision = self._decision_of(found, run)
            after = self._decided(found, decision, None)
            rows["cron_jobs"] = [after]
        for one in self.active(found.id):
            gives_way = one.state.waits and found.rule.overlap is not Overlap.ALLOW
            if gives_way or (one.attempt is not None and one.attempt.id in run.replaces):
                await self.stop_runs(found, due_at, [one])
        with self._doubt():
            await self.writer.insert([adopted], **rows)
        self._put(after)

    async def stop_runs(self, found: CronJob, due_at: float, runs: Sequence[Workload]) -> None:
        """Stop these runs, because the one for `due_at` replaces them."""
        replaced = ReplacedByNextRun(name=found.name, due_at=due_at)
        stop = StopRequest(found.owner, self.clock.now(), StopCause.USER, replaced)
        for one in runs:
            await self.writer.apply(one.id, StopRequested(stop))

    def _may_submit(self, found: CronJob) -> bool:
        owner = Principal(found.owner, frozenset({Scope.SUBMIT}), found.groups)
        return found.of_admin or access_of(owner, self.settings).may(Permission.SUBMIT, found.tenant)

    async def _shorten_history(self, cron_job_id: str) -> None:
        """Delete the oldest ended runs beyond those that are kept."""
        found = self.live_state.cron_jobs.get(cron_job_id)
        if found is None or found.removed:
            return
        for kept, states in (
            (found.succeeded_kept, {State.SUCCEEDED}),
            (found.failed_kept, TERMINAL - {State.SUCCEEDED}),
        ):
            if kept is None:
                continue
            page = await self.store.workloads(Filter(cron_job=cron_job_id, states=states), limit=_HISTORY + kept)
            runs = list(dict.fromkeys(one.spec.array_id or one.id for one in page.items))
            old = set(runs[kept:])
            if old:
                await self.writer.write(expired=[one.id for one in page.items if (one.spec.array_id or one.id) in old])

    # --- writing ----------------------------------------------------------------------------------------------------

    async def _write(self, after: CronJob, reason: Reason, kind: EventKind = EventKind.AUDIT) -> None:
        with self._doubt():
            await self.writer.write(cron_jobs=[after], events=[self._event(after, kind, reason)])
        self._put(after)

    @contextmanager
    def _doubt(self) -> Iterator[None]:
        """After a failure of the store, the loop reads all cron jobs again before it decides anything."""
        try:
            yield
        except Unavailable:
            self._in_doubt = True
            raise

    def _put(self, after: CronJob) -> None:
        self.live_state.put_cron_job(after)
        self._waiting.pop(after.id, None)
        self._next.pop(after.id, None)
        self._changed.set()

    def _forget(self, cron_job_id: str) -> None:
        self.live_state.remove_cron_job(cron_job_id)
        for kept in (self._waiting, self._next, self._claimed):
            kept.pop(cron_job_id, None)

    def _event(self, about: CronJob, kind: EventKind, reason: Reason) -> Event:
        return Event(kind, self.clock.now(), reason, owner=about.owner, tenant=about.tenant)


def _sees(access: Access, found: CronJob) -> bool:
    return access.may_on(Permission.SEE_WORKLOADS, found.owner, found.tenant)


def _revised(by: str, before: CronJob, after: CronJob | None) -> Reason:
    if after is None or after.removed:
        return CronJobRemoved(by=by, id=before.id, name=before.name)
    return CronJobHandedOver(by=by, id=after.id, name=after.name, owner=after.owner, tenant=after.tenant)


def _is_given_to(request: Request, allocation: Allocation, node: Node) -> bool:
    """Whether the node could have given this to the request, by its last report."""
    if (allocation.cpus_milli, allocation.memory_mib) != (request.cpus_milli, request.memory_mib):
        return False
    if allocation.cpus_milli > node.report.cpus_milli or allocation.memory_mib > node.report.memory_mib:
        return False
    gpu, shares = request.gpu, {share.device_uuid: share for share in allocation.shares}
    if gpu is None:
        return not shares
    devices = [device for device in node.report.devices if device.uuid in shares]
    parts = [(part_of(device, gpu), shares[device.uuid]) for device in devices]
    return len(parts) == len(allocation.shares) == (gpu.whole or 1) and all(
        part is not None
        and 0 < share.memory_mib <= part.memory_mib * _MEASURED_AGAIN
        and 0 < share.compute_milli <= part.compute_milli * _MEASURED_AGAIN
        for part, share in parts
    )


def _shown(found: CronJob, access: Access) -> CronJob:
    return replace(found, spec=visible_spec(found.spec, access))


def _check(wanted: NewCronJob) -> None:
    for name in ("succeeded_kept", "failed_kept"):
        kept = getattr(wanted, name)
        if kept is not None and not 0 <= kept <= MAX_KEPT:
            raise InvalidInput(f"{name} must be from 0 to {MAX_KEPT}, not {kept}", field=name)
    deadline_s = wanted.rule.starting_deadline_s
    if deadline_s is not None and deadline_s < 0:
        raise InvalidInput("starting_deadline_s must not be negative", field="starting_deadline_s")
