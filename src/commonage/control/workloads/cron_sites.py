"""Hands cron jobs over to the appliances that fire them while their links are down, and adopts the runs.

A site gets a cron job that may run nowhere else. From then on the control plane claims each due time before it fires
it, and a site without a link fires what was not claimed: so each time is decided once, by one side (ADR 36).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from commonage.control.engines import Engines
from commonage.control.state.live_state import LiveState, request_from_spec
from commonage.control.workloads.cron_jobs import CronJobs
from commonage.control.workloads.start_requests import StartRequests
from commonage.domain.codec import to_json
from commonage.domain.cron_jobs import CronJob
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.ports.clock import Clock
from commonage.ports.cron_sites import CronSite, HasCronSite, SiteCronJob
from commonage.ports.engine import Engine

log = logging.getLogger(__name__)
EVERY_S = 5.0


@dataclass(slots=True)
class CronSites:
    """`start_requests` makes the templates of the runs."""

    engines: Engines
    live_state: LiveState
    cron_jobs: CronJobs
    start_requests: StartRequests
    clock: Clock
    _synced: dict[str, tuple[int, Mapping[str, str]]] = field(default_factory=dict)  # link and versions, by site
    _assigned: tuple[float, Mapping[str, Sequence[CronJob]]] = field(
        default_factory=lambda: (0.0, {})
    )  # read at, by site
    iterations: Iterations = field(init=False)

    def __post_init__(self) -> None:
        self.iterations = Iterations("cron_sites", self.clock.now)

    async def run(self) -> None:
        with self.iterations.rest():
            await self.engines.run_each(self._serve)

    async def _serve(self, engine: Engine) -> None:
        if not isinstance(engine, HasCronSite):
            await asyncio.Event().wait()
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._adopt(engine.site, engine.cron_site))
            tasks.create_task(self._keep_synced(engine.site, engine.cron_site))

    async def _adopt(self, site: str, at: CronSite) -> None:
        async for report in at.reports():
            if report.done.done():  # its link is lost, and the site reports them again
                continue
            try:
                adopted = [await self.cron_jobs.adopt(site, run) for run in report.runs]
            except CommonageError as error:
                log.warning("site %s: runs of cron jobs are not stored yet: %s", site, error)
                if not report.done.done():
                    report.done.set_exception(error)
            else:
                if not report.done.done():
                    report.done.set_result(frozenset(one for one in adopted if one is not None))
            self.iterations.end()

    async def _keep_synced(self, site: str, at: CronSite) -> None:
        while True:
            try:
                await self.sync(site, at)
            except CommonageError as error:
                log.warning("site %s: its cron jobs are not handed over yet: %s", site, error)
            self.iterations.end()
            await self.clock.sleep(EVERY_S)

    async def sync(self, site: str, at: CronSite) -> None:
        """Bring the site's cron jobs up to date. Raises EngineFailure, Unavailable."""
        link = at.link_number
        if not link:
            return
        wanted = self._of(site) if at.fires else []
        for one in wanted:
            if one.site is None:
                await self.cron_jobs.hand_over(one.id, site)
        own = [one for one in self.live_state.cron_jobs.values() if one.site == site]
        wanted_ids = {one.id for one in wanted}
        given = {one.id: made for one in own if one.id in wanted_ids and (made := self._made(one, site)) is not None}
        versions = {one.id: one.version for one in given.values()}
        if self._synced.get(site) == (link, versions) and len(own) == len(versions):
            return
        kept = await at.keep_only(sorted(versions)) if at.fires else {}
        for one in own:
            if one.id not in versions:
                await self.cron_jobs.taken_back(one.id, site)
        for cron_job_id, made in given.items():
            if kept.get(cron_job_id) != made.version:
                await at.keep(made)
        self._synced[site] = (link, versions)

    def _of(self, site: str) -> Sequence[CronJob]:
        """The cron jobs that may run at this site only."""
        at, assigned = self._assigned
        now = self.clock.now()
        if not 0 <= now - at < EVERY_S / 2:
            by_site: defaultdict[str, list[CronJob]] = defaultdict(list)
            names = list(self.engines)
            for one in self.live_state.cron_jobs.values():
                if (only := self._only_site(one, names)) is not None:
                    by_site[only].append(one)
            assigned = by_site
            self._assigned = now, assigned
        return assigned.get(site, ())

    def _only_site(self, cron_job: CronJob, names: Sequence[str]) -> str | None:
        spec = cron_job.spec
        if cron_job.suspended or cron_job.removed or spec.array_size:
            return None
        sites = self.live_state.snapshot.restricted(request_from_spec(spec, "", 0.0)).request.sites
        allowed = names if sites is None else [name for name in names if name in sites]
        return allowed[0] if len(allowed) == 1 and isinstance(self.engines[allowed[0]], HasCronSite) else None

    def _made(self, cron_job: CronJob, site: str) -> SiteCronJob | None:
        """None if its runs cannot start now, for example because the environment is gone."""
        try:
            start = self.start_requests.template(replace(cron_job.spec, cron_job=cron_job.id), site)
        except CommonageError as error:
            log.warning("cron job %s: site %s cannot fire it: %s", cron_job.id, site, error)
            return None
        spec = cron_job.spec
        made = SiteCronJob(cron_job.id, cron_job.name, "", cron_job.rule, 0.0, spec.request, start, spec.grace_s)
        version = hashlib.sha256(json.dumps(to_json(made), sort_keys=True).encode()).hexdigest()[:16]
        return replace(made, version=version, decided_until=cron_job.decided_until)
