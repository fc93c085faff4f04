"""The contract of the metrics port is worth nothing if it lets a broken one pass: each of these must fail."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from commonage.ports.metrics import Metrics, Point, Sample
from commonage.testing.fakes.metrics import MemoryMetrics
from commonage.testing.metrics_contract import MetricsContract

suite = MetricsContract()


class LosesTheLast(MemoryMetrics):
    async def write(self, samples: Sequence[Sample]) -> None:
        await super().write(samples[:-1])


class MixesSubjects(MemoryMetrics):
    async def write(self, samples: Sequence[Sample]) -> None:
        await super().write([replace(each, subject="node:a") for each in samples])


class IncludesTheEnd(MemoryMetrics):
    async def query(
        self, metric: str, subject: str, *, since: float, until: float, points: int = 200
    ) -> Sequence[Point]:
        return await super().query(metric, subject, since=since, until=until + 0.5, points=points)


class NeverForgets(MemoryMetrics):
    async def tidy(self, now: float) -> None:
        pass


class ForgetsTooSoon(MemoryMetrics):
    async def tidy(self, now: float) -> None:
        await super().tidy(now + 86400)


class DropsInsteadOfRollingUp(MemoryMetrics):
    async def tidy(self, now: float) -> None:
        await super().tidy(now)
        self.minutes.clear()


class RollsUpTwice(MemoryMetrics):
    async def tidy(self, now: float) -> None:
        before = {series: dict(figures) for series, figures in self.raw.items()}
        await super().tidy(now)
        self.raw = before


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (LosesTheLast, suite.test_fine_buckets_give_what_was_written),
        (MixesSubjects, suite.test_series_are_kept_apart),
        (IncludesTheEnd, suite.test_window_holds_its_begin_and_not_its_end),
        (NeverForgets, suite.test_then_it_becomes_minutes_then_hours_then_nothing),
        (ForgetsTooSoon, suite.test_a_day_is_kept_as_it_was),
        (DropsInsteadOfRollingUp, suite.test_then_it_becomes_minutes_then_hours_then_nothing),
        (RollsUpTwice, suite.test_late_comers_join_their_minute),
    ],
)
def test_it_bites(broken: type[MemoryMetrics], test: Callable[[Metrics], Awaitable[None]]) -> None:
    async def run(metrics: Metrics) -> None:
        await test(metrics)

    asyncio.run(run(MemoryMetrics()))
    with pytest.raises(AssertionError):
        asyncio.run(run(broken()))
