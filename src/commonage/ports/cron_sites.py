"""Appliances that fire cron jobs while their link is down. Implemented by `engines.remote`, used by control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from commonage.domain.cron_jobs import CronRule
from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.domain.requests import Request
from commonage.domain.statuses import StartRequest


@dataclass(frozen=True, slots=True)
class SiteCronJob:
    """A cron job for a site to fire. Times up to `decided_until` are decided.

    `start` is the start request of its runs, without ids, allocation and share variables. `version` differs if
    anything else than `decided_until` does.
    """

    id: str
    name: str
    version: str
    rule: CronRule
    decided_until: float
    request: Request
    start: StartRequest
    grace_s: int


@dataclass(frozen=True, slots=True)
class SiteRun:
    """A due time that the site decided at `at`, without a link.

    It started the run (`allocation`), `refused` it, or has not started it and never will: then the control plane
    queues it. `replaces` are attempts that the site stopped for it.
    """

    cron_job: str
    due_at: float
    at: float
    allocation: Allocation | None = None
    refused: Reason | None = None
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunReport:
    """Runs that a site reports, oldest first. Once they are durable here, `done` gets the ids of the attempts among
    them that are taken over, or an error.
    """

    runs: tuple[SiteRun, ...]
    done: asyncio.Future[frozenset[str]] = field(compare=False)


class CronSite(Protocol):
    """All calls but the properties and `reports` raise EngineFailure, at once if there is no link."""

    @property
    def link_number(self) -> int:
        """Rises with each link on which the site has reported its state; 0 while there is none."""
        ...

    @property
    def fires(self) -> bool:
        """Whether its site agent can fire cron jobs; that of an older release cannot."""
        ...

    @property
    def unreachable(self) -> SiteUnreachable | None: ...

    async def claim(self, cron_job_id: str, due_at: float) -> None:
        """From now on the site never fires this time, nor an older one."""
        ...

    async def keep_only(self, cron_job_ids: Collection[str]) -> Mapping[str, str]:
        """The site forgets all others. Returns the versions of those that it has, by id."""
        ...

    async def keep(self, cron_job: SiteCronJob) -> None:
        """Give it to the site, or replace it there. Earlier decisions of the site stay."""
        ...

    def reports(self) -> AsyncIterator[RunReport]:
        """Yields the site's decisions without a link, in order, until cancelled."""
        ...


@runtime_checkable
class HasCronSite(Protocol):
    """An engine whose site can fire cron jobs."""

    @property
    def cron_site(self) -> CronSite: ...
