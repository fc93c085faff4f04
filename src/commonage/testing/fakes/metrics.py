"""The metrics port in memory, for tests without a database. It satisfies the whole contract."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from commonage.metrics.sql_metrics import width_of
from commonage.ports.metrics import Point, Sample

_DAY_S = 86400
_Series = tuple[str, str]


@dataclass(slots=True)
class Figure:
    number: int
    total: float
    least: float
    most: float

    def add(self, other: Figure) -> None:
        self.number += other.number
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)


class MemoryMetrics:
    def __init__(self) -> None:
        self.raw: dict[_Series, dict[float, Figure]] = {}
        self.minutes: dict[_Series, dict[float, Figure]] = {}
        self.hours: dict[_Series, dict[float, Figure]] = {}

    async def write(self, samples: Sequence[Sample]) -> None:
        for each in samples:
            if math.isfinite(each.value):
                figure = Figure(1, each.value, each.value, each.value)
                self.raw.setdefault((each.subject, each.metric), {})[each.at] = figure

    async def query(
        self, metric: str, subject: str, *, since: float, until: float, points: int = 200
    ) -> Sequence[Point]:
        if not since < until:
            return []
        width = width_of(since, until, points)
        buckets: dict[int, Figure] = {}
        for table in (self.raw, self.minutes, self.hours):
            for at, figure in table.get((subject, metric), {}).items():
                if since <= at < until:
                    buckets.setdefault(int(at / width), Figure(0, 0.0, math.inf, -math.inf)).add(figure)
        return [
            Point(max(since, number * width), each.total / each.number, each.least, each.most)
            for number, each in sorted(buckets.items())
        ]

    async def tidy(self, now: float) -> None:
        hour = now // 3600 * 3600
        _roll_up(self.raw, self.minutes, 60, hour - _DAY_S)
        _roll_up(self.minutes, self.hours, 3600, hour - 30 * _DAY_S)
        for (subject, _), figures in self.hours.items():
            kept_days = 90 if subject.startswith("attempt:") else 730
            for at in [at for at in figures if at < hour - kept_days * _DAY_S]:
                del figures[at]


def _roll_up(
    fine: dict[_Series, dict[float, Figure]], coarse: dict[_Series, dict[float, Figure]], width: int, before: float
) -> None:
    for series, figures in fine.items():
        for at in [at for at in figures if at < before]:
            into = coarse.setdefault(series, {})
            into.setdefault(at // width * width, Figure(0, 0.0, math.inf, -math.inf)).add(figures.pop(at))
