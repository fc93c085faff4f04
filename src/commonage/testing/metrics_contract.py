"""Contract tests for every store of samples. Inherit MetricsContract and supply the fixture `metrics`, empty and open.

Time is in the samples and in the argument of `tidy`; nothing here waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonage.ports.metrics import Metrics, Point, Sample
from commonage.testing.factories import workload_id

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
START: Final = 1_700_000_000 // DAY_S * DAY_S
"""A midnight, so that minutes and hours begin at round values."""


def samples(
    values: Sequence[float], *, begin: float = START, every_s: float = 5, subject: str = "node:a"
) -> list[Sample]:
    return [Sample("cpu_cores", subject, begin + index * every_s, value) for index, value in enumerate(values)]


async def everything(metrics: Metrics, subject: str = "node:a", points: int = 10**6) -> Sequence[Point]:
    return await metrics.query("cpu_cores", subject, since=START, until=START + 10 * 366 * DAY_S, points=points)


@pytest.mark.anyio
class MetricsContract:
    """Samples are averaged into buckets; old data becomes coarser, but stays correct."""

    async def test_new_store_is_empty(self, metrics: Metrics) -> None:
        assert await everything(metrics) == []
        await metrics.write([])
        await metrics.tidy(START)

    async def test_fine_buckets_give_what_was_written(self, metrics: Metrics) -> None:
        written = samples([1, 2, 3, 4.5])
        await metrics.write(written)
        found = await metrics.query("cpu_cores", "node:a", since=START, until=START + 20, points=20)
        assert found == [Point(each.at, each.value, each.value, each.value) for each in written]

    async def test_window_holds_its_begin_and_not_its_end(self, metrics: Metrics) -> None:
        await metrics.write(samples([1, 2, 3, 4]))
        found = await metrics.query("cpu_cores", "node:a", since=START + 5, until=START + 15)
        assert [each.mean for each in found] == [2, 3]
        assert await metrics.query("cpu_cores", "node:a", since=START + 15, until=START + 5) == []
        assert await metrics.query("cpu_cores", "node:a", since=START + 5, until=START + 5) == []

    @pytest.mark.parametrize("points", [1, 3, 10, 100])
    async def test_buckets_are_few_and_hold_everything(self, metrics: Metrics, points: int) -> None:
        values = [math.sin(number) * number for number in range(1000)]
        await metrics.write(samples(values, every_s=1))
        found = await metrics.query("cpu_cores", "node:a", since=START, until=START + 1000, points=points)
        assert 1 <= len(found) <= points + 1
        ends = [each.at for each in found[1:]] + [START + 1000]
        for bucket, end in zip(found, ends, strict=True):
            held = values[round(bucket.at) - START : round(end) - START]
            assert bucket.mean == pytest.approx(sum(held) / len(held))
            assert (bucket.least, bucket.most) == (min(held), max(held))

    async def test_buckets_stand_still_while_the_window_moves(self, metrics: Metrics) -> None:
        await metrics.write(samples(range(600), every_s=1))
        early = await metrics.query("cpu_cores", "node:a", since=START, until=START + 300, points=30)
        later = await metrics.query("cpu_cores", "node:a", since=START + 7, until=START + 307, points=30)
        assert early[2:] == [each for each in later if early[2].at <= each.at <= early[-1].at]

    async def test_series_are_kept_apart(self, metrics: Metrics) -> None:
        await metrics.write(
            [
                Sample("cpu_cores", "node:a", START, 1),
                Sample("memory_mib", "node:a", START, 2),
                Sample("cpu_cores", "node:ä/🦆", START, 3),
            ]
        )
        for metric, subject, value in (
            ("cpu_cores", "node:a", 1),
            ("memory_mib", "node:a", 2),
            ("cpu_cores", "node:ä/🦆", 3),
        ):
            found = await metrics.query(metric, subject, since=START, until=START + 1)
            assert [each.mean for each in found] == [value]
        assert await metrics.query("power_w", "node:a", since=START, until=START + 1) == []

    async def test_of_one_instant_the_last_counts(self, metrics: Metrics) -> None:
        await metrics.write([Sample("cpu_cores", "node:a", START, value) for value in (1, 2)])
        await metrics.write([Sample("cpu_cores", "node:a", START, 3)])
        assert [each.mean for each in await everything(metrics)] == [3]

    async def test_what_is_no_number_harms_nothing(self, metrics: Metrics) -> None:
        odd = [
            Sample("cpu_cores", "node:a", START + number, value) for number, value in enumerate((math.nan, math.inf))
        ]
        await metrics.write([*odd, Sample("cpu_cores", "node:a", START + 5, 7)])
        assert [each.mean for each in await everything(metrics)] == [7]

    async def test_many_at_once(self, metrics: Metrics) -> None:
        await metrics.write([Sample("cpu_cores", f"attempt:{number}", START, number) for number in range(5000)])
        for number in (0, 1000, 4999):
            assert [each.mean for each in await everything(metrics, f"attempt:{number}")] == [number]

    # --- growing old ---

    async def test_a_day_is_kept_as_it_was(self, metrics: Metrics) -> None:
        written = samples([1, 5, 3, 2], every_s=20)
        await metrics.write(written)
        await metrics.tidy(START + DAY_S)
        assert [each.mean for each in await everything(metrics)] != []
        found = await metrics.query("cpu_cores", "node:a", since=START, until=START + 80, points=80)
        assert [(each.at, each.mean) for each in found] == [(each.at, each.value) for each in written]

    async def test_then_it_becomes_minutes_then_hours_then_nothing(self, metrics: Metrics) -> None:
        values = [float(number % 50) for number in range(2 * HOUR_S // 10)]
        await metrics.write(samples(values, every_s=10))
        window = {"since": START, "until": START + 2 * HOUR_S, "points": 2 * HOUR_S}
        await metrics.tidy(START + DAY_S + 3 * HOUR_S)
        _are_means_of(await metrics.query("cpu_cores", "node:a", **window), values, MINUTE_S // 10, MINUTE_S)
        await metrics.tidy(START + 30 * DAY_S + 3 * HOUR_S)
        _are_means_of(await metrics.query("cpu_cores", "node:a", **window), values, HOUR_S // 10, HOUR_S)
        await metrics.tidy(START + 729 * DAY_S)
        assert len(await metrics.query("cpu_cores", "node:a", **window)) == 2
        await metrics.tidy(START + 731 * DAY_S)
        assert await everything(metrics) == []
        await metrics.write(samples([1], begin=START + 731 * DAY_S))
        assert len(await everything(metrics)) == 1

    async def test_those_of_attempts_go_with_the_workloads(self, metrics: Metrics) -> None:
        attempt = f"attempt:{workload_id()}-1"
        await metrics.write([Sample("cpu_cores", subject, START, 5) for subject in (attempt, "node:a")])
        await metrics.tidy(START + 89 * DAY_S)
        assert len(await everything(metrics, attempt)) == 1
        await metrics.tidy(START + 91 * DAY_S)
        assert await everything(metrics, attempt) == []
        assert len(await everything(metrics)) == 1

    async def test_old_and_new_are_seen_together(self, metrics: Metrics) -> None:
        for day in (0, 40, 69, 70):
            await metrics.write(samples([day, day + 2], begin=START + day * DAY_S))
        await metrics.tidy(START + 70 * DAY_S + 2 * HOUR_S)
        found = await metrics.query("cpu_cores", "node:a", since=START, until=START + 71 * DAY_S, points=71)
        assert [(each.mean, each.least, each.most) for each in found] == [(d + 1, d, d + 2) for d in (0, 40, 69, 70)]

    async def test_tidying_again_changes_nothing(self, metrics: Metrics) -> None:
        await metrics.write(samples(range(100)))
        now = START + 3 * DAY_S
        await metrics.tidy(now)
        once = await everything(metrics)
        for later in (0, 1, MINUTE_S, HOUR_S, DAY_S):
            await metrics.tidy(now + later)
            assert await everything(metrics) == once

    async def test_late_comers_join_their_minute(self, metrics: Metrics) -> None:
        await metrics.write(samples([10, 20]))
        await metrics.tidy(START + 3 * DAY_S)
        await metrics.write([Sample("cpu_cores", "node:a", START + 30, 60)])
        await metrics.tidy(START + 4 * DAY_S)
        found = await metrics.query("cpu_cores", "node:a", since=START, until=START + 60, points=60)
        assert found == [Point(START, 30, 10, 60)]

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        st.dictionaries(st.integers(0, 40 * 24 * 60), st.integers(-1000, 1000), min_size=1, max_size=30),
        st.lists(st.integers(0, 60), max_size=4),
        st.integers(1, 50),
    )
    async def test_growing_old_loses_and_invents_nothing(
        self, metrics: Metrics, minutes: dict[int, int], tidied: list[int], points: int
    ) -> None:
        subject = f"attempt:{workload_id()}"
        written = [
            Sample("cpu_cores", subject, START + at * MINUTE_S + at % 60, value) for at, value in minutes.items()
        ]
        await metrics.write(written)
        for day in tidied:
            await metrics.tidy(START + day * DAY_S)
        [whole] = await metrics.query("cpu_cores", subject, since=0, until=2 * START, points=1)
        values = list(minutes.values())
        assert whole.mean == pytest.approx(sum(values) / len(values))
        assert (whole.least, whole.most) == (min(values), max(values))
        found = await metrics.query("cpu_cores", subject, since=START, until=START + 41 * DAY_S, points=points)
        assert len(found) <= points + 1
        assert [each.at for each in found] == sorted({each.at for each in found})
        assert all(START <= each.at < START + 41 * DAY_S for each in found)
        assert (min(each.least for each in found), max(each.most for each in found)) == (min(values), max(values))


def _are_means_of(found: Sequence[Point], values: Sequence[float], number: int, width: int) -> None:
    """Assert that each point is exactly the mean of `number` of the values."""
    parts = [values[begin : begin + number] for begin in range(0, len(values), number)]
    assert [each.at for each in found] == [START + index * width for index in range(len(parts))]
    assert [each.mean for each in found] == pytest.approx([sum(part) / len(part) for part in parts])
    assert [(each.least, each.most) for each in found] == [(min(part), max(part)) for part in parts]
