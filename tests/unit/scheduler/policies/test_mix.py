"""The mix of typical workloads: learned from a history, and from decaying arrivals."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from tests.unit.scheduler.clusters import GIB, REQUESTS

from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.policies.mix import (
    ENOUGH,
    GUESS,
    GUESS_COUNTS,
    HALF_LIFE,
    START_COUNTS,
    MixEstimator,
    WorkloadMix,
    mix_distance,
    typical,
)

HALF = Request(1000, 2 * GIB, parse_gpus("0.5"))
WHOLE = Request(4000, 8 * GIB, parse_gpus("1"))
PAIR = Request(4000, 0, parse_gpus("2"))
NO_GPU = Request(2000, 0)
ALL_HALVES, ALL_WHOLE = (WorkloadMix.of([typical(one)]) for one in (HALF, WHOLE))


def test_rare_requests_are_left_out_and_weights_follow_frequency() -> None:
    rare = Request(500, 0, parse_gpus("0.1"))
    mix = WorkloadMix.of([HALF] * 60 + [PAIR] * 36 + [rare] * 4)
    assert mix.requests == (typical(HALF), PAIR)
    assert mix.weights == approx((60 / 96, 36 / 96))


def test_memory_and_labels_do_not_distinguish_requests() -> None:
    mix = WorkloadMix.of([Request(1000, 64, HALF.gpu, (("zone", "a"),)), Request(1000, 1024, HALF.gpu), NO_GPU])
    assert mix.requests == (typical(HALF), NO_GPU)
    assert mix.weights == WorkloadMix.of({HALF: 2.0, NO_GPU: 1.0}).weights
    assert mix.cpus_per_mib == 2000 / 1088


def test_empty_history_gives_empty_mix() -> None:
    assert WorkloadMix.of([]) == WorkloadMix()


def estimator_after(start: WorkloadMix, *monotonic_at: tuple[Request, int]) -> MixEstimator:
    arrivals = MixEstimator(start)
    for request, times in monotonic_at:
        for _ in range(times):
            arrivals.add(request)
    return arrivals


def test_estimator_without_arrivals_returns_its_initial_mix() -> None:
    assert estimator_after(ALL_HALVES).mix() == ALL_HALVES
    assert mix_distance(estimator_after(WorkloadMix()).mix(), GUESS) < 0.02


def test_arrivals_outvote_a_guess_sooner_than_a_given_mix() -> None:
    assert mix_distance(estimator_after(WorkloadMix(), (HALF, 10 * GUESS_COUNTS)).mix(), ALL_HALVES) < 0.15
    assert mix_distance(estimator_after(ALL_WHOLE, (HALF, 10 * GUESS_COUNTS)).mix(), ALL_WHOLE) < 0.15
    assert mix_distance(estimator_after(ALL_WHOLE, (HALF, 5 * START_COUNTS)).mix(), ALL_HALVES) < 0.05


def test_arrival_counts_half_after_its_half_life() -> None:
    arrivals = estimator_after(WorkloadMix(), (WHOLE, 30 * HALF_LIFE), (HALF, HALF_LIFE))
    assert dict(zip(arrivals.mix().requests, arrivals.mix().weights, strict=True)) == approx(
        {Request(4000, 0, WHOLE.gpu): 0.5, Request(1000, 0, HALF.gpu): 0.5}, abs=0.02
    )


def test_cpus_per_mib_counts_only_requests_with_a_gpu() -> None:
    assert estimator_after(ALL_HALVES).cpus_per_mib() == float("inf")
    assert estimator_after(ALL_HALVES, (Request(64_000, GIB), 2 * ENOUGH)).cpus_per_mib() == float("inf")
    assert estimator_after(ALL_HALVES, (HALF, ENOUGH - 1)).cpus_per_mib() == float("inf")
    assert estimator_after(ALL_HALVES, (HALF, ENOUGH), (Request(64_000, GIB), 9)).cpus_per_mib() == approx(
        1000 / (2 * GIB)
    )
    assert estimator_after(WorkloadMix.of([HALF])).cpus_per_mib() == approx(1000 / (2 * GIB))
    assert estimator_after(WorkloadMix.of([HALF]), (Request(1000, 4 * GIB, HALF.gpu), 9)).cpus_per_mib() < 1000 / (
        2 * GIB
    )


def test_mix_distance_is_the_differing_part() -> None:
    assert mix_distance(ALL_HALVES, ALL_HALVES) == 0
    assert mix_distance(ALL_HALVES, ALL_WHOLE) == 1
    assert mix_distance(ALL_HALVES, WorkloadMix.of([HALF, WHOLE])) == approx(0.5)


@settings(max_examples=30, deadline=None)
@given(st.lists(REQUESTS, max_size=200))
def test_weights_sum_to_one(monotonic_at: list[Request]) -> None:
    arrivals = estimator_after(WorkloadMix(), *((request, 1) for request in monotonic_at))
    assert sum(arrivals.mix().weights) == approx(1)
