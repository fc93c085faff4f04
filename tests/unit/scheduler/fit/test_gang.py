"""Gangs: all at once, each on a node of its own, or none."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.tenants import Rules
from commonage.scheduler.fit.gang import spread_out
from commonage.scheduler.model.queued_requests import QueuedRequest
from commonage.scheduler.model.shapes import Floats
from commonage.scheduler.plan import plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

INF = np.inf


def row(*values: float) -> Floats:
    return np.array(values, np.float64)


def nowhere(_: int) -> bool:
    return False


def test_members_get_the_cheapest_nodes_or_none_of_them_any() -> None:
    costs = row(5, 1, INF, 3)
    assert spread_out(costs, 2, nowhere) == (1, 3)
    assert spread_out(costs, 3, nowhere) == (1, 3, 0)
    assert spread_out(costs, 4, nowhere) is None
    assert costs.tolist() == [5, 1, INF, 3]


def test_of_nodes_nearly_as_cheap_those_that_hold_the_environment_come_first() -> None:
    assert spread_out(row(1, 1.001, 9), 2, lambda number: number == 1) == (1, 0)


@given(st.lists(st.sampled_from([1.0, 2.0, INF]), min_size=1, max_size=6), st.integers(1, 6))
def test_all_of_them_or_none_and_no_two_on_one_node(costs: list[float], count: int) -> None:
    found = spread_out(row(*costs), count, nowhere)
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


def test_a_gang_starts_whole_on_as_many_nodes() -> None:
    assert sorted(allocation.node for _, allocation in plan(gang(3, 3), 1.0).starts) == ["n0", "n1", "n2"]


def test_a_gang_does_not_start_that_is_not_there_yet_or_too_large() -> None:
    assert plan(gang(2, 3), 1.0).starts == ()
    assert plan(gang(4, 4), 1.0).starts == ()
