"""Changes of cron jobs, why a due time did not run, and effects on earlier runs."""

from __future__ import annotations

from typing import ClassVar

from commonage.domain.reasons.base import Reason

MAX_COUNTED = 100
"""Missed times are counted up to this number."""


class CronJobCreated(Reason):
    """A user created a cron job."""

    by: str
    id: str
    name: str
    schedule: str
    time_zone: str


class CronJobRemoved(Reason):
    """A user removed a cron job."""

    by: str
    id: str
    name: str


class CronJobHandedOver(Reason):
    """A cron job got another owner or tenant, because its own is renamed or removed."""

    by: str
    id: str
    name: str
    owner: str
    tenant: str


class CronJobSuspended(Reason):
    """A user suspended a cron job."""

    by: str
    id: str
    name: str


class CronJobResumed(Reason):
    """A user resumed a cron job. Times that passed while it was suspended do not run."""

    by: str
    id: str
    name: str


class CronJobTriggered(Reason):
    """A user ran a cron job outside its schedule."""

    by: str
    id: str
    name: str
    workload_id: str


class CronRunRefused(Reason):
    """A time of a cron job does not run. `missed` counts older times that do not run either."""

    id: str
    name: str
    due_at: float
    missed: int
    cause: Reason


class CronRunsMissed(Reason):
    """Several times of a cron job were missed, and only the newest of them runs. `missed` counts the others."""

    id: str
    name: str
    due_at: float
    missed: int


class StartingDeadlinePassed(Reason):
    """The run would have started later than its starting deadline allows."""

    late_s: float
    deadline_s: int


class PreviousRunActive(Reason):
    """The previous run has not ended, and the cron job skips a time then."""

    workload_id: str


class ReplacedByNextRun(Reason):
    """The next run of the cron job was due, and replaces this one."""

    name: str
    due_at: float


class OwnerMayNotSubmit(Reason):
    """The owner of the cron job may not submit to its tenant any more."""

    owner: str
    tenant: str


class SiteFiresCronJob(Reason):
    """The site of the cron job is unreachable: it fires the cron job itself, and reports the runs afterwards."""

    site: str
    since: float


class StartedBySite(Reason):
    """The site started this run of a cron job by itself, while its link was down."""

    site: str
    name: str
    due_at: float


class TakenByCronRun(Reason):
    """While its link was down, the site started a run of a cron job in the same place."""

    never_ran: ClassVar[bool] = True

    node: str
    workload_id: str
