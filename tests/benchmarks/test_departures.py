"""The departure experiment on a small cluster."""

from __future__ import annotations

import pytest

from benchmarks.placement.departures import run_steady
from benchmarks.placement.lists import Scenario
from benchmarks.placement.policies import POLICIES
from commonage.domain.errors import InvalidInput
from commonage.domain.requests import Request, parse_gpus
from commonage.replay.clusters import parse_cluster

CLUSTER = parse_cluster("8x4")


def workloads(*gpus: str | None) -> list[Request]:
    return [Request(1000, 1024, parse_gpus(one)) for one in gpus]


def test_everything_starts_at_once_at_a_low_load() -> None:
    steady = run_steady(Scenario(CLUSTER, workloads("0.5", "1")), POLICIES["best-fit"], 1, 20)
    assert (steady.wait_min, steady.wasted) == (0.0, 0.0)
    assert 10 < steady.allocation < 30


def test_overload_fills_the_cluster_and_makes_workloads_wait() -> None:
    steady = run_steady(Scenario(CLUSTER, workloads("1")), POLICIES["best-fit"], 1, 200)
    assert steady.allocation > 99
    assert steady.wait_min > 10
    assert steady.wasted < 1


def test_idle_gpus_that_waiting_workloads_request_are_wasted() -> None:
    steady = run_steady(Scenario(CLUSTER, workloads("0.7")), POLICIES["best-fit"], 1, 200)
    assert steady.allocation == pytest.approx(70, abs=1)
    assert steady.wasted == pytest.approx(30, abs=1)
    assert steady.wasted_gpu_hours == pytest.approx(steady.wasted / 100 * 32 * 3, rel=0.01)


@pytest.mark.parametrize("policy", ["best-fit", "fgd", "expected-waste"])
def test_experiment_is_deterministic_for_a_seed(policy: str) -> None:
    scenario = Scenario(CLUSTER, workloads("0.5", "0.7", "2", None))
    first, again = (run_steady(scenario, POLICIES[policy], 3, 90) for _ in range(2))
    assert first == again


def test_workloads_that_fit_nowhere_are_left_out() -> None:
    scenario = Scenario(CLUSTER, workloads("1", "8"))
    assert run_steady(scenario, POLICIES["best-fit"], 1, 50).wait_min == 0.0
    with pytest.raises(InvalidInput, match="no workload requests one"):
        run_steady(Scenario(CLUSTER, workloads("8")), POLICIES["best-fit"], 1, 50)
