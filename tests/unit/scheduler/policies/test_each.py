"""Each policy on nodes where one can see what it should do."""

from __future__ import annotations

from tests.unit.scheduler.clusters import GIB
from tests.unit.scheduler.policies.nodes import make, node, put, stop

from commonage.domain.requests import Request, parse_gpus
from commonage.testing import factories


def test_best_fit_leaves_least_over() -> None:
    grid, policy = make("best-fit", node("large", 8), node("small", 2))
    assert put(grid, policy, stop("1")) == (1, [0])
    assert put(grid, policy, stop("0.5")) == (1, [1])
    assert put(grid, policy, stop("0.25")) == (1, [1])
    assert put(grid, policy, stop("2")) == (0, [0, 1])


def test_spread_goes_where_most_is_free() -> None:
    grid, policy = make("spread", node("a", 2), node("b", 2))
    assert [put(grid, policy, stop("0.25")) for _ in range(4)] == [(0, [0]), (1, [0]), (0, [1]), (1, [1])]


def test_devices_of_one_numa_node_where_that_is_wanted() -> None:
    devices = [factories.device(index, uuid=f"GPU-{index}", numa=index % 2) for index in range(4)]
    grid, policy = make("best-fit", factories.node("a", devices, cpus_milli=8000))
    pair = Request(1000, GIB, parse_gpus("2"), one_numa=True)
    assert put(grid, policy, stop("1")) == (0, [0])
    assert put(grid, policy, pair) == (0, [1, 3])
