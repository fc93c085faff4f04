"""What is learned from arrivals: new ones count, old ones fade, and where nobody knows there is a guess."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from tests.unit.scheduler.clusters import GIB, REQUESTS

from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.fit.arrivals import ENOUGH, GUESS, GUESS_COUNTS, HALF_LIFE, START_COUNTS, MixEstimator, apart
from commonage.scheduler.policies.mix import WorkloadMix, typical

HALF = Request(1000, 2 * GIB, parse_gpus("0.5"))
WHOLE = Request(4000, 8 * GIB, parse_gpus("1"))
ALL_HALVES, ALL_WHOLE = (WorkloadMix.of([typical(one)]) for one in (HALF, WHOLE))


def after(start: WorkloadMix, *monotonic_at: tuple[Request, int]) -> MixEstimator:
    arrivals = MixEstimator(start)
    for request, times in monotonic_at:
        for _ in range(times):
            arrivals.add(request)
    return arrivals


def test_nothing_came_and_the_mix_is_that_of_the_start() -> None:
    assert after(ALL_HALVES).mix() == ALL_HALVES
    assert apart(after(WorkloadMix()).mix(), GUESS) < 0.02


def test_a_guess_is_soon_outvoted_and_a_mix_that_was_given_late() -> None:
    assert apart(after(WorkloadMix(), (HALF, 10 * GUESS_COUNTS)).mix(), ALL_HALVES) < 0.15
    assert apart(after(ALL_WHOLE, (HALF, 10 * GUESS_COUNTS)).mix(), ALL_WHOLE) < 0.15
    assert apart(after(ALL_WHOLE, (HALF, 5 * START_COUNTS)).mix(), ALL_HALVES) < 0.05


def test_an_arrival_counts_half_after_its_half_life() -> None:
    arrivals = after(WorkloadMix(), (WHOLE, 30 * HALF_LIFE), (HALF, HALF_LIFE))
    assert dict(zip(arrivals.mix().requests, arrivals.mix().weights, strict=True)) == approx(
        {Request(4000, 0, WHOLE.gpu): 0.5, Request(1000, 0, HALF.gpu): 0.5}, abs=0.02
    )


def test_cpus_that_come_with_memory_are_those_of_what_takes_a_gpu() -> None:
    assert after(ALL_HALVES).cpus_per_mib() == float("inf")
    assert after(ALL_HALVES, (Request(64_000, GIB), 2 * ENOUGH)).cpus_per_mib() == float("inf")
    assert after(ALL_HALVES, (HALF, ENOUGH - 1)).cpus_per_mib() == float("inf")
    assert after(ALL_HALVES, (HALF, ENOUGH), (Request(64_000, GIB), 9)).cpus_per_mib() == approx(1000 / (2 * GIB))
    assert after(WorkloadMix.of([HALF])).cpus_per_mib() == approx(1000 / (2 * GIB))
    assert after(WorkloadMix.of([HALF]), (Request(1000, 4 * GIB, HALF.gpu), 9)).cpus_per_mib() < 1000 / (2 * GIB)


def test_how_far_mixes_are_apart() -> None:
    assert apart(ALL_HALVES, ALL_HALVES) == 0
    assert apart(ALL_HALVES, ALL_WHOLE) == 1
    assert apart(ALL_HALVES, WorkloadMix.of([HALF, WHOLE])) == approx(0.5)


@settings(max_examples=30, deadline=None)
@given(st.lists(REQUESTS, max_size=200))
def test_weights_sum_to_one_whatever_comes(monotonic_at: list[Request]) -> None:
    arrivals = after(WorkloadMix(), *((request, 1) for request in monotonic_at))
    assert sum(arrivals.mix().weights) == approx(1)
