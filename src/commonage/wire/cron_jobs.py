"""Cron jobs: jobs that repeat at the times of a cron expression."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import PlainText, Seconds, Strict
from commonage.wire.workloads import RequestOut, SubmitIn, WorkloadOut

OverlapName = Literal["allow", "skip", "replace"]
MissedRunsName = Literal["run-once", "skip"]


class CronRuleIn(Strict):
    """When a cron job runs, and what happens to times that cannot be met."""

    schedule: Annotated[PlainText, Field(min_length=1, max_length=100)] = Field(
        description="A cron expression with five fields (minute, hour, day of month, month, day of week), or @hourly, "
        "@daily, @weekly, @monthly, @yearly.",
        examples=["0 7 * * 1-5"],
    )
    time_zone: Annotated[PlainText, Field(min_length=1, max_length=64)] = Field(
        "UTC", description="The time zone of the schedule.", examples=["Europe/Berlin"]
    )
    overlap: OverlapName = Field(
        "skip",
        description="If the previous run has not ended: run both, skip the new one, or stop the old one.",
    )
    missed_runs: MissedRunsName = Field(
        "run-once", description="After an outage: run the newest missed time once, or skip all missed times."
    )
    starting_deadline_s: Seconds | None = Field(
        None,
        description="A run that would start later than this counts as missed. Default: no limit, or 60 if missed runs "
        "are skipped.",
    )


class CronJobIn(CronRuleIn):
    """A cron job to create. `job` is what each run runs; its `key` is ignored."""

    job: SubmitIn
    suspended: bool = Field(False, description="Create it suspended.")
    succeeded_kept: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        None, description="How many succeeded runs are kept. Default: as long as other workloads."
    )
    failed_kept: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        None, description="How many other ended runs are kept. Default: as long as other workloads."
    )


class CronJobOut(BaseModel):
    """A cron job. Instants are unix seconds. `GET /workloads?cron_job=ID` lists its runs."""

    id: str
    name: str
    owner: str
    tenant: str
    environment: str
    command: list[str]
    request: RequestOut
    schedule: str
    time_zone: str
    overlap: OverlapName
    missed_runs: MissedRunsName
    starting_deadline_s: int | None
    suspended: bool
    succeeded_kept: int | None
    failed_kept: int | None
    created_at: float
    next_times: list[float] = Field(description="The next five times; none while it is suspended.")
    last_due_at: float | None = Field(description="The newest time that ran or was refused.")
    reason: ReasonOut | None = Field(
        None, description="Why the newest time did not run, or why a run that is due is not submitted yet."
    )
    active: list[str] = Field(default_factory=list, description="Ids of its runs that have not ended.")


class CronJobList(BaseModel):
    """Cron jobs, by owner and name."""

    items: list[CronJobOut]


class TriggerIn(Strict):
    """Runs a cron job outside its schedule."""

    key: Annotated[PlainText, Field(min_length=1, max_length=64)] | None = Field(
        None, description="Idempotency key: a repeated request with it returns the same run."
    )


class TriggeredOut(BaseModel):
    """The run, or the first member of its array."""

    workload: WorkloadOut
    created: bool
    ids: list[str]
