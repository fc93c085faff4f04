"""Events, output and metrics of workloads and nodes, and the queries for them."""

from __future__ import annotations

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import MAX_INTEGER, Instant, Strict
from commonage.wire.workloads import StateName


class EventOut(BaseModel):
    """An event. `seq` increases with every event; `at` is unix seconds."""

    seq: int
    kind: str
    at: float
    reason: ReasonOut
    workload_id: str | None
    attempt_id: str | None
    owner: str | None
    state: str | None


class EventPage(BaseModel):
    """Events, oldest first. For the next page, use the last `seq` as `after`."""

    items: list[EventOut]
    next_cursor: str | None


class EventsQuery(Strict):
    """Selects a page of events. A stream starts after the `Last-Event-ID` header instead."""

    after: int | None = Field(None, ge=0, le=MAX_INTEGER, description="Only events with a greater number (`seq`).")
    limit: int = Field(500, ge=1, le=500)


class LogLineOut(BaseModel):
    """One line of output; `offset` is the byte position after it."""

    text: str
    offset: int


class LogEndOut(BaseModel):
    """The last message of a log stream: the state of the workload after its output."""

    state: StateName
    exit_code: int | None
    reason: ReasonOut
    attempt: int | None = Field(None, description="The number of the attempt that wrote the output.")


class LogsQuery(Strict):
    """Selects a part of the output."""

    attempt: int | None = Field(None, ge=1, le=1_000_000, description="Number of the attempt. Default: the newest.")
    offset: int = Field(0, ge=0, le=MAX_INTEGER, description="Start at this byte.")
    tail: int | None = Field(None, ge=0, le=1_000_000, description="Only this number of last lines.")
    follow: bool | None = Field(
        None, description="Follow until it ends. Default: true for a stream (`text/event-stream`), false for text."
    )


class PointOut(BaseModel):
    """Mean, minimum and maximum of a metric in one interval; `at` is unix seconds."""

    at: float
    mean: float
    least: float
    most: float


class SeriesOut(BaseModel):
    """One metric of one subject over time."""

    metric: str
    subject: str
    unit: str
    points: list[PointOut]


class MetricsOut(BaseModel):
    """Metrics of a workload, a node or a GPU in [since, until)."""

    since: float
    until: float
    series: list[SeriesOut]


class MetricsQuery(Strict):
    """Selects a time span and its resolution."""

    since: Instant | None = Field(None, description="Unix seconds. Default: one hour before `until`.")
    until: Instant | None = Field(None, description="Unix seconds. Default: now.")
    points: int = Field(200, ge=1, le=2000)
