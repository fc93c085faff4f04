"""The choice of nodes: gangs on different nodes or not at all, near ties by environment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.tenants import Rules
from commonage.scheduler.fit.fit_table import cheapest_node, choose_nodes
from commonage.scheduler.model.shapes import Floats, QueuedRequest
from commonage.scheduler.plan import plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

INF = np.inf


def row(*values: float) -> Floats:
    return np.array(values, np.float64)


def nowhere(_: int) -> bool:
    return False


def test_members_get_the_cheapest_nodes_or_none() -> None:
    costs = row(5, 1, INF, 3)
    assert choose_nodes(costs, 2, nowhere) == (1, 3)
    assert choose_nodes(costs, 3, nowhere) == (1, 3, 0)
    assert choose_nodes(costs, 4, nowhere) is None
    assert costs.tolist() == [5, 1, INF, 3]


def test_cheapest_node_prefers_the_environment_only_in_near_ties() -> None:
    costs = row(10.0, 5.0, 5.04, INF, 5.2)
    assert cheapest_node(costs, lambda number: number in (2, 3)) == 2
    assert cheapest_node(costs, lambda number: number == 4) == 1, "too expensive"
    assert cheapest_node(costs, lambda number: number == 3) == 1, "may not start there"
    assert cheapest_node(costs, lambda _number: True) == 1


def test_near_ties_prefer_nodes_with_the_environment() -> None:
    assert choose_nodes(row(1, 1.001, 9), 2, lambda number: number == 1) == (1, 0)


@given(st.lists(st.sampled_from([1.0, 2.0, INF]), min_size=1, max_size=6), st.integers(1, 6))
def test_all_members_get_different_nodes_or_none_start(costs: list[float], count: int) -> None:
    found = choose_nodes(row(*costs), count, nowhere)
    free = [cost for cost in costs if cost < INF]
    assert (found is None) == (len(free) < count)
    if found is not None:
        assert len(set(found)) == count
        assert sorted(costs[number] for number in found) == sorted(free)[:count]


def gang(count: int, size: int) -> Snapshot:
    snapshot = Snapshot([factories.node(f"n{number}", 2, site="a") for number in range(3)], Rules())
    for number in range(count):
        request = factories.request(gpus="1")
        snapshot.enqueue(QueuedRequest(f"w{number}", f"a{number}", request, 0, 0.0, gang="g", gang_size=size))
    return snapshot


def test_gang_starts_on_different_nodes() -> None:
    assert sorted(allocation.node for _, allocation in plan(gang(3, 3), 1.0).starts) == ["n0", "n1", "n2"]


def test_incomplete_or_too_large_gang_does_not_start() -> None:
    assert plan(gang(2, 3), 1.0).starts == ()
    assert plan(gang(4, 4), 1.0).starts == ()
