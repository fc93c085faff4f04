"""Cron jobs that the site fires while its link is down: the port `ports.cron_sites` over the link."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from commonage.domain.codec import Unreadable
from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.engines.remote.claims import checked_run
from commonage.engines.remote.clock import SiteClock
from commonage.engines.remote.commands import upload
from commonage.engines.remote.statuses import SiteAttempts
from commonage.link.messages import Nothing
from commonage.link.sites.messages.cron import (
    CLAIM_RUN,
    KEEP_CRON_JOB,
    KEEP_ONLY_CRON_JOBS,
    CronJobIds,
    DueTime,
    KeptCronJob,
    SiteRuns,
)
from commonage.link.sites.messages.hello import CRON_PROTOCOL
from commonage.link.sites.transport.connection import SiteConnection
from commonage.ports.agents import OnProgress
from commonage.ports.cron_sites import CronSite, RunReport, SiteCronJob, SiteRun

_log = logging.getLogger(__name__)
MAX_RUNS = 1000
"""Of one message. Site agents report 50 at once."""


class RemoteCronSite(CronSite):
    """`link` returns the number of links so far, and the one on which the site has reported its state."""

    def __init__(
        self,
        site: str,
        attempts: SiteAttempts,
        clock: SiteClock,
        link: Callable[[], tuple[int, SiteConnection | None]],
        required: Callable[[], SiteConnection],
        unreachable: Callable[[], SiteUnreachable | None],
    ) -> None:
        self._site, self._attempts, self._clock = site, attempts, clock
        self._link, self._required, self._unreachable = link, required, unreachable
        self._reports: asyncio.Queue[RunReport] = asyncio.Queue()

    @property
    def link_number(self) -> int:
        number, connection = self._link()
        return 0 if connection is None else number

    @property
    def fires(self) -> bool:
        _, connection = self._link()
        return connection is not None and connection.protocol >= CRON_PROTOCOL

    @property
    def unreachable(self) -> SiteUnreachable | None:
        return self._unreachable()

    async def claim(self, cron_job_id: str, due_at: float) -> None:
        await self._required().request(CLAIM_RUN, DueTime(cron_job_id, due_at))

    async def keep_only(self, cron_job_ids: Collection[str]) -> Mapping[str, str]:
        kept = await self._required().request(KEEP_ONLY_CRON_JOBS, CronJobIds(tuple(cron_job_ids)))
        return dict(kept.versions)

    async def keep(self, cron_job: SiteCronJob) -> None:
        connection, path = self._required(), cron_job.start.bundle_path
        digest = "" if path is None else await upload(connection, Path(path))
        await connection.request(KEEP_CRON_JOB, KeptCronJob(cron_job, digest))

    async def reports(self) -> AsyncGenerator[RunReport]:
        while True:
            yield await self._reports.get()

    async def on_runs(self, reported: SiteRuns, _: OnProgress) -> Nothing:
        """Answered once the runs are durable here, and their attempts are known."""
        if len(reported.runs) > MAX_RUNS:
            raise EngineFailure(
                f"{len(reported.runs)} runs of cron jobs are reported at once, and {MAX_RUNS} are allowed. Update the "
                "site agent, or report fewer at once."
            )
        runs = [run for one in reported.runs if (run := self._checked(one)) is not None]
        report = RunReport(tuple(runs), asyncio.get_running_loop().create_future())
        self._reports.put_nowait(report)
        adopted = await report.done
        allocations = [one.allocation for one in runs if one.allocation is not None]
        await self._attempts.adopt([one for one in allocations if one.attempt_id in adopted])
        return Nothing()

    def _checked(self, run: SiteRun) -> SiteRun | None:
        """With the times of this side's clock, and with this site. None if it cannot be stored."""
        try:
            run = checked_run(run)
        except Unreadable as error:
            _log.warning("site %s: a run of a cron job is dropped: %s", self._site, error)
            return None
        allocation = run.allocation
        if allocation is not None:
            allocation = replace(allocation, site=self._site, at=self._clock.here(allocation.at))
        return replace(run, at=self._clock.here(run.at), allocation=allocation)
