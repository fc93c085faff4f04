"""What clients may ask in a query string. An unknown parameter is an error, not a silence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from commonage.wire.workloads import KindName, PlainText, StateName, Strict

# What every database and every JSON reader can hold exactly.
MOST = 2**53 - 1
Name = Annotated[PlainText, Field(max_length=128)]
# Unix seconds; up to the year 9999.
Instant = Annotated[float, Field(ge=0, le=253_402_300_799)]


class WorkloadsQuery(Strict):
    """Which workloads; every parameter that is given must match."""

    owner: Name | None = Field(None, description="Whose; only admins see those of others.")
    kind: KindName | None = None
    state: list[StateName] = Field(default_factory=list, description="Any of these; repeat the parameter.")
    node: Name | None = Field(None, description="On this machine.")
    environment: Name | None = None
    array: Annotated[PlainText, Field(max_length=64)] | None = Field(None, description="Members of this array.")
    text: Annotated[PlainText, Field(max_length=200)] | None = Field(
        None, description="Part of the name, or the start of the id."
    )
    limit: int = Field(100, ge=1, le=500)
    cursor: Annotated[str, Field(max_length=512)] | None = Field(None, description="`next_cursor` of the page before.")
    counts: bool = Field(False, description="Count all that match, by state.")


class EventsQuery(Strict):
    """Which events, where a page of them is asked for; a stream begins behind the `Last-Event-ID` header."""

    after: int | None = Field(None, ge=0, le=MOST, description="Only those with a greater number (`seq`).")
    limit: int = Field(500, ge=1, le=500)


class LogsQuery(Strict):
    """Which part of the output."""

    attempt: int | None = Field(None, ge=1, le=1_000_000, description="The try of this number; the newest if left out.")
    offset: int = Field(0, ge=0, le=MOST, description="From this byte on.")
    tail: int | None = Field(None, ge=0, le=1_000_000, description="Only so many last lines.")
    follow: bool | None = Field(
        None, description="Until it ends. If left out: a stream (`text/event-stream`) follows, plain text does not."
    )


class MetricsQuery(Strict):
    """Which time, and how fine."""

    since: Instant | None = Field(None, description="Unix seconds; an hour before `until` if left out.")
    until: Instant | None = Field(None, description="Unix seconds; now if left out.")
    points: int = Field(200, ge=1, le=2000)


class DrainQuery(Strict):
    """What becomes of the work there."""

    requeue: bool = Field(
        False,
        description="Have jobs queue again now, and sessions that wish it start elsewhere; not all may do either.",
    )
    by: Annotated[PlainText, Field(min_length=1, max_length=64)] | None = Field(
        None, description="When all that still runs there must leave: `2h`, `18:00`, `2026-11-24 14:00`."
    )
    time_zone: Annotated[PlainText, Field(max_length=64)] = Field(
        "UTC", description="Of a `by` without one: `Europe/Berlin`, `UTC`, `+01:00`."
    )


class RemoveQuery(Strict):
    """On whose word."""

    force: bool = Field(False, description="Yours, that what was still counted as running on it does not run any more.")


class ResumeQuery(Strict):
    """All of a node, or one GPU of it."""

    gpu: Name | None = Field(
        None, description="Index, `device:place` of a MIG instance, or uuid: forget the faults of this one only."
    )


class UsageQuery(Strict):
    """Which time, and summed by what."""

    since: Instant | None = Field(None, description="Unix seconds; 30 days before `until` if left out.")
    until: Instant | None = Field(None, description="Unix seconds; now if left out.")
    by: Literal["owner", "tenant", "workload", "environment"] = "owner"


class LaunchQuery(Strict):
    """For whom."""

    user: Name | None = Field(None, description="What this user may have; for admins and the hub.")
    group: list[Name] = Field(default_factory=list, description="Groups of that user; repeat the parameter.")
