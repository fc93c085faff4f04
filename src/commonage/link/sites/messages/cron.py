"""Messages of a site link about cron jobs that their site fires while the link is down (ADR 36)."""

from __future__ import annotations

from dataclasses import dataclass

from commonage.link.messages import Nothing, RequestType
from commonage.ports.cron_sites import SiteCronJob, SiteRun


@dataclass(frozen=True, slots=True)
class KeptCronJob:
    """A cron job for the site to keep. `bundle` is the digest of its files, uploaded before."""

    cron_job: SiteCronJob
    bundle: str = ""


@dataclass(frozen=True, slots=True)
class CronJobIds:
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CronJobVersions:
    """Pairs of id and version."""

    versions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DueTime:
    cron_job: str
    due_at: float


@dataclass(frozen=True, slots=True)
class SiteRuns:
    """Oldest first. Reporting one twice has no further effect."""

    runs: tuple[SiteRun, ...] = ()


KEEP_CRON_JOB = RequestType("keep-cron-job", KeptCronJob, Nothing, 30.0)
KEEP_ONLY_CRON_JOBS = RequestType("keep-only-cron-jobs", CronJobIds, CronJobVersions, 30.0)
CLAIM_RUN = RequestType("claim-cron-run", DueTime, Nothing, 30.0)
"""From the control plane. What they change is durable on the site when they are answered."""
REPORT_RUNS = RequestType("report-cron-runs", SiteRuns, Nothing, 60.0)
"""From the site, before its first statuses on a link. Durable at the control plane when it is answered."""
