"""Cron jobs that this site fires while its link is down. Each decision is on disk before it takes effect.

With a link, the control plane fires them: it claims each due time before, so that this site never fires that time too.
The runs fired here are reported on the next link, before its first statuses.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from commonage.domain.codec import from_json, to_json
from commonage.domain.cron_jobs import Overlap, decide, run_id
from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.nodes import Allocation
from commonage.domain.reasons.cron_jobs import ReplacedByNextRun, TakenByCronRun
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind, workload_of
from commonage.link.messages import Nothing
from commonage.link.sites.messages.cron import (
    REPORT_RUNS,
    CronJobIds,
    CronJobVersions,
    DueTime,
    KeptCronJob,
    SiteRuns,
)
from commonage.link.sites.messages.engine import Start
from commonage.link.sites.sqlite_file import SqliteFile, Statement
from commonage.link.sites.transport.connection import SiteConnection
from commonage.ports.agents import OnProgress
from commonage.ports.clock import Clock
from commonage.ports.cron_sites import SiteCronJob, SiteRun
from commonage.ports.engine import Engine
from commonage.scheduler.model.shapes import QueuedRequest
from commonage.site_agent.attempts import Attempts
from commonage.site_agent.bundles import SiteBundles
from commonage.site_agent.room import Room

_log = logging.getLogger(__name__)
EVERY_S = 1.0
GRACE_S = 10.0
"""A link that is down for less is not an outage: the control plane fires the times that were due meanwhile."""
MAX_UNREPORTED = 1000
"""Maximum number of unreported decisions. At this limit the site makes no more until the link is back: due times are
missed.
"""
_AT_ONCE = 50
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS cron_jobs "
    "(id TEXT PRIMARY KEY, cron_job TEXT NOT NULL, bundle TEXT NOT NULL, decided_until REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS cron_runs (cron_job TEXT NOT NULL, due_at REAL NOT NULL, run TEXT NOT NULL, "
    "returned INTEGER NOT NULL, PRIMARY KEY (cron_job, due_at))",
)
"""`cron_runs` are those not reported yet. `returned`: it never starts here, as the control plane may queue it."""


@dataclass(slots=True)
class _Job:
    job: SiteCronJob
    bundle: str
    decided_until: float
    next_at: float = 0.0


@dataclass(slots=True)
class _Run:
    run: SiteRun
    returned: bool = False

    @property
    def waits(self) -> bool:
        return self.run.allocation is None and self.run.refused is None


class CronJobs:
    def __init__(
        self, engine: Engine, file: SqliteFile, attempts: Attempts, bundles: SiteBundles, room: Room, clock: Clock
    ) -> None:
        self._engine, self._file, self._attempts = engine, file, attempts
        self._bundles, self._room, self._clock = bundles, room, clock
        self._jobs: dict[str, _Job] = {}
        self._runs: dict[tuple[str, float], _Run] = {}
        self._changing = asyncio.Lock()
        self._linked = False
        self._lost_at = clock.now()

    async def open(self) -> None:
        """Raises Unavailable."""
        for text, bundle, decided_until in await self._file.read(
            "SELECT cron_job, bundle, decided_until FROM cron_jobs"
        ):
            job = from_json(SiteCronJob, json.loads(text), ignore_unknown=True)
            self._jobs[job.id] = _Job(job, bundle, decided_until)
        for text, returned in await self._file.read("SELECT run, returned FROM cron_runs"):
            run = from_json(SiteRun, json.loads(text), ignore_unknown=True)
            self._runs[run.cron_job, run.due_at] = _Run(run, bool(returned))
        self._lost_at = self._clock.now()

    # --- the link -------------------------------------------------------------------------------------------------

    async def report(self, connection: SiteConnection) -> None:
        """Fire nothing from now on, and report the decisions made without a link. Raises EngineFailure."""
        self._linked = True
        async with self._changing:
            while batch := sorted(self._runs.values(), key=lambda one: (one.run.due_at, one.run.cron_job))[:_AT_ONCE]:
                back = [one for one in batch if one.waits and not one.returned]
                await self._file.write(
                    *(
                        ("UPDATE cron_runs SET returned = 1 WHERE cron_job = ? AND due_at = ?", _key(one.run))
                        for one in back
                    )
                )
                for one in back:
                    one.returned = True
                await connection.request(REPORT_RUNS, SiteRuns(tuple(one.run for one in batch)))
                await self._file.write(
                    *(("DELETE FROM cron_runs WHERE cron_job = ? AND due_at = ?", _key(one.run)) for one in batch)
                )
                for one in batch:
                    del self._runs[_key(one.run)]

    async def forget_all(self) -> None:
        """For a control plane that does not claim due times: it fires all, and knows no run that was fired here."""
        self._linked = True
        async with self._changing:
            if self._jobs or self._runs:
                await self._file.write(("DELETE FROM cron_jobs", ()), ("DELETE FROM cron_runs", ()))
                self._jobs, self._runs = {}, {}
                await self._attempts.clear_bundles()

    def lost(self) -> None:
        """The link is down."""
        if self._linked:
            self._linked, self._lost_at = False, self._clock.now()

    # --- requests of the control plane ----------------------------------------------------------------------------

    async def keep(self, given: KeptCronJob, _: OnProgress) -> Nothing:
        job = given.cron_job
        async with self._changing:
            before = self._jobs.get(job.id)
            until = max(job.decided_until, before.decided_until) if before else job.decided_until
            await self._file.write(
                (
                    "INSERT OR REPLACE INTO cron_jobs (id, cron_job, bundle, decided_until) VALUES (?, ?, ?, ?)",
                    (job.id, json.dumps(to_json(job)), given.bundle, until),
                )
            )
            self._jobs[job.id] = _Job(job, given.bundle, until)
            self._bundles.stored(given.bundle)
            if before is not None and before.bundle != given.bundle:
                await self._attempts.clear_bundles()
        return Nothing()

    async def keep_only(self, wanted: CronJobIds, _: OnProgress) -> CronJobVersions:
        async with self._changing:
            gone = self._jobs.keys() - set(wanted.ids)
            if gone:
                await self._file.write(*(("DELETE FROM cron_jobs WHERE id = ?", (one,)) for one in gone))
                for one in gone:
                    del self._jobs[one]
                await self._attempts.clear_bundles()
            return CronJobVersions(tuple((one.job.id, one.job.version) for one in self._jobs.values()))

    async def claim(self, wanted: DueTime, _: OnProgress) -> Nothing:
        async with self._changing:
            kept = self._jobs.get(wanted.cron_job)
            if kept is None:
                raise EngineFailure(f"the site does not have the cron job {wanted.cron_job[:60]}", retryable=True)
            if kept.decided_until < wanted.due_at:
                await self._file.write(_decided(wanted.cron_job, wanted.due_at))
                kept.decided_until = wanted.due_at
        return Nothing()

    def check_room(self, request: StartRequest) -> None:
        """Raise EngineFailure if a run that was fired here has the place of this attempt."""
        if (taken := self._room.taken_by(request.allocation)) is not None:
            raise EngineFailure(TakenByCronRun(node=request.allocation.node, workload_id=workload_of(taken)))

    # --- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self._clock.sleep(EVERY_S)
            try:
                await self.tick()
            except CommonageError as error:
                _log.warning("cron jobs are not fired yet: %s", error)

    async def tick(self) -> None:
        """Without a link: decide the due times, and start the runs that fit."""
        async with self._changing:
            for kept in self._jobs.values():
                if not self._linked and kept.next_at <= self._clock.now() and self._is_outage(kept.job):
                    await self._decide(kept)
            if self._linked:
                return
            await self._stop_replaced()
            for one in sorted(self._runs.values(), key=lambda one: (one.run.due_at, one.run.cron_job)):
                if one.waits and not one.returned and not self._linked:
                    await self._start(one)

    def _is_outage(self, job: SiteCronJob) -> bool:
        deadline_s = job.rule.starting_deadline_s
        grace_s = GRACE_S if deadline_s is None else min(GRACE_S, deadline_s / 2)
        return self._clock.now() - self._lost_at >= grace_s and len(self._runs) < MAX_UNREPORTED

    async def _decide(self, kept: _Job) -> None:
        job, now = kept.job, self._clock.now()
        active = self._active(job.id)
        waiting = [one for one in self._runs.values() if one.waits and one.run.cron_job == job.id]
        previous = [workload_of(one) for one in active] or [run_id(job.id, one.run.due_at) for one in waiting]
        decision = decide(job.rule, kept.decided_until, now, previous[0] if previous else "")
        if decision is None:
            kept.next_at = next(iter(job.rule.next_times(now, 1)), float("inf"))
            return
        due_at = decision.due_at
        run = SiteRun(job.id, due_at, now, refused=decision.refused)
        replaced: list[SiteRun] = []
        if decision.refused is None and job.rule.overlap is Overlap.REPLACE:
            run = replace(run, replaces=tuple(active))
            why = ReplacedByNextRun(name=job.name, due_at=due_at)
            replaced = [replace(one.run, refused=why) for one in waiting if not one.returned]
        await self._file.write(_decided(job.id, due_at), *(_upsert(one) for one in (*replaced, run)))
        kept.decided_until = due_at
        for one in (*replaced, run):
            self._runs[_key(one)] = _Run(one)
        _log.info("cron job %s: the time %s is decided here, without a link", job.id, due_at)

    def _active(self, cron_job: str) -> Sequence[str]:
        """Its attempts on this site that have not ended, oldest first."""
        live = self._attempts.live()
        return sorted(
            one for one in live if (of := self._attempts.of_cron_job(one)) is not None and of.cron_job == cron_job
        )

    async def _stop_replaced(self) -> None:
        live = self._attempts.live()
        for one in self._runs.values():
            for replaced in one.run.replaces:
                if replaced in live:
                    await self._engine.stop(replaced, self._jobs[one.run.cron_job].job.grace_s)

    async def _start(self, one: _Run) -> None:
        kept, now = self._jobs[one.run.cron_job], self._clock.now()
        template, workload = kept.job.start, run_id(kept.job.id, one.run.due_at)
        wanted = QueuedRequest(
            workload_id=workload,
            request=kept.job.request,
            priority=0,
            submitted_at=one.run.due_at,
            owner=template.owner,
            tenant=template.tenant,
            kind=Kind.JOB,
            environment=template.environment.name,
        )
        allocation = self._room.place(wanted, self._engine.site, now)
        if allocation is None:
            return
        run = replace(one.run, at=now, allocation=allocation)
        await self._attempts.fire(_start_of(kept, workload, allocation), _upsert(run))
        one.run = run
        _log.info("cron job %s: its run %s starts here, without a link", kept.job.id, workload)


def _start_of(kept: _Job, workload: str, allocation: Allocation) -> Start:
    template = kept.job.start
    variables = {**dict(template.variables), "COMMONAGE_WORKLOAD_ID": workload, "COMMONAGE_ATTEMPT": "1"}
    request = replace(
        template,
        attempt_id=allocation.attempt_id,
        workload_id=workload,
        allocation=allocation,
        variables=tuple(variables.items()),
        cron_job=kept.job.id,
    )
    return Start(request, kept.bundle)


def _key(run: SiteRun) -> tuple[str, float]:
    return run.cron_job, run.due_at


def _decided(cron_job: str, until: float) -> Statement:
    return "UPDATE cron_jobs SET decided_until = ? WHERE id = ?", (until, cron_job)


def _upsert(run: SiteRun) -> Statement:
    return (
        "INSERT OR REPLACE INTO cron_runs (cron_job, due_at, run, returned) VALUES (?, ?, ?, 0)",
        (*_key(run), json.dumps(to_json(run))),
    )
