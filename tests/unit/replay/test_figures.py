"""Figures of a run, compared with values computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.requests import GpuRequest, Request
from commonage.replay.chart import BUCKETS, ReplayRun, bucket_means, page
from commonage.replay.figures import Capacity, ReplayedWorkload, Sample, figures, jain, percentile
from commonage.replay.records import Record

DEVICE = Request(1000, 1024, GpuRequest(whole=1))


def record(number: int, owner: str, at: float, lasts: float) -> Record:
    return Record(str(number), owner, owner, DEVICE, at, lasts)


def test_waits_utilisation_and_makespan() -> None:
    ran = [
        ReplayedWorkload(record(0, "ada", 0, 3600), 0, 3600),
        ReplayedWorkload(record(1, "bob", 0, 3600), 3600, 7200, preempted=2),
        ReplayedWorkload(record(2, "bob", 10, 60), None, None),
    ]
    samples = [Sample(0, 1000, 1000, 1), Sample(3600, 1000, 1000, 0), Sample(7200, 0, 0, 0)]
    result = figures(ran, samples, Capacity(2000, 4000))
    assert (result.workloads, result.unfinished, result.preemptions) == (3, 1, 2)
    assert (result.wait_p50_s, result.wait_p95_s, result.wait_mean_s) == (0, 3600, 1800)
    assert (result.gpu_utilisation, result.cpu_utilisation) == (0.5, 0.25)
    assert result.makespan_s == 7200
    assert result.fairness == pytest.approx(9 / 10)  # slowdowns of 1 and 2
    assert [(tenant.tenant, tenant.workloads, tenant.gpu_h) for tenant in result.tenants] == [
        ("ada", 1, 1.0),
        ("bob", 2, 1.0),
    ]


def test_figures_if_nothing_started() -> None:
    result = figures([ReplayedWorkload(record(0, "ada", 5, 1), None, None)], [], Capacity(0, 0))
    assert (result.unfinished, result.wait_p95_s, result.fairness, result.gpu_utilisation) == (1, 0, 1, 0)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=20))
def test_fairness_is_between_one_nth_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9


def test_percentile_is_one_of_the_values() -> None:
    assert percentile([5, 1, 3], 50) == 3
    assert percentile([5, 1, 3], 95) == 5
    assert percentile([], 50) == 0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 100)), min_size=1, max_size=30))
def test_bucket_means_keep_the_area(steps: list[tuple[float, float]]) -> None:
    steps.sort(key=lambda step: step[0])
    end = steps[-1][0] + 100
    means = bucket_means(steps, steps[0][0], end)
    area = sum(
        value * (after - at) for (at, value), after in zip(steps, [*(at for at, _ in steps[1:]), end], strict=True)
    )
    assert len(means) == BUCKETS
    assert sum(means) * (end - steps[0][0]) / BUCKETS == pytest.approx(area, rel=1e-6, abs=1e-3)


def test_page_shows_each_setting_escaped() -> None:
    ran = [ReplayedWorkload(record(0, "ada", 0, 3600), 0, 3600)]
    samples = [Sample(0, 1000, 1000, 0), Sample(3600, 0, 0, 0)]
    run = ReplayRun("as <it> is", figures(ran, samples, Capacity(1000, 1000)), samples, Capacity(1000, 1000))
    text = page("Replay", ["a & b"], [run, run])
    assert text.count("as &lt;it&gt; is") == 2
    assert "a &amp; b" in text
    assert text.count("<polyline") == 4
    assert "http" not in text
