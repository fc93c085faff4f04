"""Each baseline policy on nodes where the right choice is evident, and the rules for every policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import REQUESTS, clusters
from tests.unit.scheduler.policies.rules import (
    check_new_nodes_are_used,
    check_placements,
    choose,
    make,
    node,
    put,
    stop,
)

from benchmarks.placement.fragmentation import Fragmentation
from benchmarks.placement.policies import POLICIES
from benchmarks.placement.policies.dot_product import DotProduct
from benchmarks.placement.policies.fgd import Fgd
from benchmarks.placement.policies.gpu_clustering import GpuClustering
from benchmarks.placement.policies.gpu_packing import GpuPacking
from benchmarks.placement.policies.random_choice import RandomChoice
from commonage.domain.nodes import Node
from commonage.domain.requests import Request
from commonage.scheduler.policies import registry
from commonage.scheduler.policies.mix import WorkloadMix

BASELINES = [name for name in POLICIES if name not in registry.POLICIES]


@pytest.mark.parametrize("name", BASELINES)
@settings(max_examples=25, deadline=None)
@given(clusters(), st.lists(REQUESTS, min_size=1, max_size=12))
def test_every_policy_places_requests_where_they_fit(name: str, cluster: list[Node], asked: list[Request]) -> None:
    check_placements(POLICIES[name], cluster, asked)


@pytest.mark.parametrize("name", BASELINES)
def test_policy_uses_new_nodes_and_new_kinds_of_devices(name: str) -> None:
    check_new_nodes_are_used(POLICIES[name])


def test_dot_product_avoids_nodes_with_much_free() -> None:
    grid, policy = make(DotProduct, node("many-devices", 8, 8000), node("few-devices", 2, 16_000))
    assert put(grid, policy, stop("1"))[0] == 1
    assert put(grid, policy, stop(cpus=4000))[0] == 0


def test_gpu_packing_opens_few_devices_and_nodes() -> None:
    grid, policy = make(GpuPacking, node("free", 2), node("used", 4))
    put(grid, policy, stop("0.5"), at=(1, [2]))
    assert put(grid, policy, stop("0.5")) == (1, [2])  # a GPU in use
    assert put(grid, policy, stop("1")) == (1, [0])  # a free GPU of a node in use
    assert put(grid, policy, stop("2")) == (1, [1, 3])
    assert put(grid, policy, stop("1")) == (0, [0])  # a free node, as there is nothing else
    assert put(grid, policy, stop())[0] == 0


def test_gpu_clustering_prefers_the_same_kind() -> None:
    grid, policy = make(GpuClustering, *(node(name, 4) for name in ("parts", "single", "both", "free")))
    for at, gpus in ((0, "0.25"), (1, "1"), (2, "0.25"), (2, "1")):
        put(grid, policy, stop(gpus), at=(at, [3 if at == 2 and gpus == "1" else 0]))
    order = {gpus: list(np.argsort(policy.costs(grid.shape(stop(gpus))), kind="stable")) for gpus in ("0.25", "1", "2")}
    assert order == {"0.25": [0, 2, 3, 1], "1": [1, 2, 3, 0], "2": [3, 2, 1, 0]}


def test_fgd_does_not_break_up_devices_that_others_need() -> None:
    grid, policy = make(Fgd, node("whole", 2), node("begun", 2))
    put(grid, policy, stop("0.5"), at=(1, [1]))
    assert put(grid, policy, stop("0.5")) == (1, [1])
    put(grid, policy, stop("0.7"), at=(1, [0]))
    # 300 thousandths are of use to a quarter only; what takes a quarter goes there.
    assert put(grid, policy, stop("0.25")) == (1, [0])


@settings(max_examples=30, deadline=None)
@given(clusters(), st.lists(REQUESTS, min_size=1, max_size=5))
def test_fgd_score_equals_the_actual_change(cluster: list[Node], asked: list[Request]) -> None:
    mix = WorkloadMix.of(asked, 1.0)
    grid, policy = make(Fgd, *cluster, mix=mix)
    for request in asked:
        shape = grid.shape(request)
        costs = policy.costs(shape).copy()
        before = Fragmentation(grid, mix).by_node()
        for number in np.flatnonzero(np.isfinite(costs)):
            tried = grid.allocation(shape, int(number), policy.devices(shape, int(number)), "tried", 0.0)
            grid.take(tried)
            fall = before[number] - Fragmentation(grid, mix).by_node()[number]
            grid.give(tried)
            assert abs(100 / (1 + np.exp(-fall / 1000)) + costs[number]) < 1 + 1e-6
        if (found := choose(grid, policy, shape)) is not None:
            grid.take(grid.allocation(shape, *found, f"held-{request}", 0.0))


def test_random_uses_all_nodes_and_is_deterministic() -> None:
    grid, policy = make(RandomChoice, *(node(f"node-{i}", 2) for i in range(4)))
    places = set()
    for _ in range(60):
        shape = grid.shape(stop("0.1"))
        found = choose(grid, policy, shape)
        assert found == choose(grid, policy, shape)
        places.add(str(put(grid, policy, stop("0.1"))))
    assert len(places) == 8
