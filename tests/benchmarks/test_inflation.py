"""The placement experiment on a small cluster: arrivals, order, and outcome."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.placement.inflation import LEVELS, Outcome, gpu_milli, prepare, run
from benchmarks.placement.policies import POLICIES
from benchmarks.placement.trials import row_of
from commonage.domain.errors import InvalidInput
from commonage.domain.requests import Request, parse_gpus
from commonage.replay.clusters import parse_cluster

CLUSTER = parse_cluster("8x4")
SMALL = [Request(1000, 1024, parse_gpus(gpus)) for gpus in ("0.5", "0.25", "1", "2", "0.7", None)]


def asked(requests: list[Request]) -> int:
    return sum(gpu_milli(request) for request in requests)


@pytest.mark.parametrize("times", [1, 30])
def test_list_is_filled_up_or_cut(times: int) -> None:
    workloads = SMALL * times
    trial = prepare(CLUSTER, workloads, 42)
    assert set(trial.arrivals) <= set(workloads)
    assert 1300 * 32 - 1000 < asked(list(trial.arrivals)) < 1300 * 32 + 1000
    short = not Counter(workloads) - Counter(trial.arrivals)
    assert short == (times == 1)


def test_trial_is_deterministic_for_a_seed() -> None:
    first, same, other = (prepare(CLUSTER, SMALL, seed) for seed in (42, 42, 43))
    assert first == same
    assert first.arrivals != other.arrivals
    assert [node.name for node in first.nodes] != [node.name for node in other.nodes]
    assert sorted(node.name for node in first.nodes) == [node.name for node in CLUSTER]


def test_list_of_the_exact_demand_is_unchanged() -> None:
    workloads = [Request(1000, 1024, parse_gpus("1"))] * 13
    assert list(prepare(parse_cluster("1x10"), workloads, 1).arrivals) == workloads


def test_nothing_to_measure_raises_an_error() -> None:
    with pytest.raises(InvalidInput, match="no workload requests one"):
        prepare(CLUSTER, [Request()], 42)
    with pytest.raises(InvalidInput, match="no node has a GPU"):
        prepare([], SMALL, 42)


def test_outcome_has_allocation_failures_and_fragmentation() -> None:
    halves = [Request(1000, 1024, parse_gpus("0.5"))]
    outcome = run(prepare(CLUSTER, halves, 42), POLICIES["best-fit"], 42)
    # 64 halves find place; of the 83 that come the rest does not. Those at 100%, rounded, are the 64th alone.
    assert (outcome.allocation[100], outcome.allocation[130]) == (100.0, 100.0)
    assert outcome.failed == 83 - 64
    assert outcome.fragmented_130 == 0.0
    assert outcome.per_second > 0


def test_unusable_idle_capacity_is_fragmented() -> None:
    workloads = [Request(1000, 1024, parse_gpus("0.7"))]
    outcome = run(prepare(CLUSTER, workloads, 42), POLICIES["fgd"], 42)
    assert outcome.allocation[130] == pytest.approx(70.0)
    assert outcome.fragmented_130 == pytest.approx(30.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_repeated_trial_has_the_same_outcome(policy: str) -> None:
    def play() -> Outcome:
        return run(prepare(CLUSTER, SMALL, 3), POLICIES[policy], 3)

    first, again = play(), play()
    assert (first.allocation, first.failed) == (again.allocation, again.failed)
    assert 60 < first.allocation[130] <= 100


def test_workload_without_fitting_devices_is_dropped() -> None:
    four, one = (Request(1000, 1024, parse_gpus(gpus)) for gpus in ("4", "1"))
    trial = prepare(parse_cluster("8x2"), [four, one], 1)
    outcome = run(trial, POLICIES["fgd"], 1)
    assert outcome.failed == trial.arrivals.count(four) + max(0, trial.arrivals.count(one) - 16)


def test_row_is_the_mean_over_seeds_with_the_published_figure() -> None:
    outcomes = [
        Outcome(dict.fromkeys(LEVELS, 95.0), 4.0, 10, 5000.0),
        Outcome(dict.fromkeys(LEVELS, 97.0), 5.0, 11, 7000.0),
    ]
    row = row_of("default", "fgd", outcomes)
    assert (row.allocation[130], row.allocation_130_std, row.failed) == (96.0, 1.0, 10.5)
    assert row.published_130 == 95.39
    assert row_of("mine", "spread", outcomes).published_130 is None
