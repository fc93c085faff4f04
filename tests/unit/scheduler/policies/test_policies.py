"""Rules for every policy, on random clusters; and each policy on nodes where the right choice is evident."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB, REQUESTS, clusters
from tests.unit.scheduler.policies.rules import check_new_nodes_are_used, check_placements, make, node, put, stop

from commonage.domain.nodes import Node
from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.policies.registry import DEFAULT, POLICIES
from commonage.testing import factories


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(clusters(), st.lists(REQUESTS, min_size=1, max_size=12))
def test_every_policy_places_requests_where_they_fit(name: str, cluster: list[Node], asked: list[Request]) -> None:
    check_placements(POLICIES[name], cluster, asked)


@pytest.mark.parametrize("name", POLICIES)
def test_policy_uses_new_nodes_and_new_kinds_of_devices(name: str) -> None:
    check_new_nodes_are_used(POLICIES[name])


def test_default_policy_is_registered() -> None:
    assert DEFAULT in POLICIES


def test_best_fit_leaves_least_free() -> None:
    grid, policy = make("best-fit", node("large", 8), node("small", 2))
    assert put(grid, policy, stop("1")) == (1, [0])
    assert put(grid, policy, stop("0.5")) == (1, [1])
    assert put(grid, policy, stop("0.25")) == (1, [1])
    assert put(grid, policy, stop("2")) == (0, [0, 1])


def test_spread_prefers_the_emptiest_device() -> None:
    grid, policy = make("spread", node("a", 2), node("b", 2))
    assert [put(grid, policy, stop("0.25")) for _ in range(4)] == [(0, [0]), (1, [0]), (0, [1]), (1, [1])]


def test_devices_come_from_one_numa_node_if_requested() -> None:
    devices = [factories.device(index, uuid=f"GPU-{index}", numa=index % 2) for index in range(4)]
    grid, policy = make("best-fit", factories.node("a", devices, cpus_milli=8000))
    pair = Request(1000, GIB, parse_gpus("2"), one_numa=True)
    assert put(grid, policy, stop("1")) == (0, [0])
    assert put(grid, policy, pair) == (0, [1, 3])
