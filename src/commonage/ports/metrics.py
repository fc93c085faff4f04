"""Measurements over time: one port, so that SQL roll-ups and a real time-series database are alike to the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure: `metric` of `subject` at `at`. Subjects: `attempt:ID`, `node:NAME`, `device:UUID`, `platform`.

    Metrics carry their unit: `cpu_cores`, `memory_mib`, `gpu_memory_mib`, `gpu_utilisation` (0..1), `power_w`,
    `queue_length`, `running`.
    """

    metric: str
    subject: str
    at: float
    value: float


@dataclass(frozen=True, slots=True)
class Point:
    """Mean, least and most of a metric in the bucket that starts at `at`."""

    at: float
    mean: float
    least: float
    most: float


class Metrics(Protocol):
    """Where samples go and come from."""

    async def write(self, samples: Sequence[Sample]) -> None:
        """Keep these. Losing the last seconds in a crash is allowed."""
        ...

    async def query(
        self, metric: str, subject: str, *, since: float, until: float, points: int = 200
    ) -> Sequence[Point]:
        """At most about `points` buckets within [since, until), oldest first, from the finest data still kept."""
        ...

    async def latest(self, subjects: Sequence[str]) -> Sequence[Sample]:
        """The newest sample of each metric of each subject, not older than two minutes before the newest of all."""
        ...

    async def tidy(self, now: float) -> None:
        """Roll up and drop: raw a day, minutes a month, hours two years. Some databases do so by themselves."""
        return
