"""Gangs: all at once, each on a node of its own, or none."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.placement.fragmentation import Mix
from commonage.placement.gang import earliest, place, spread_out
from commonage.placement.grid import Grid
from commonage.placement.policies.registry import POLICIES
from commonage.placement.shapes import Floats
from commonage.testing import factories

INF = np.inf


def row(*values: float) -> Floats:
    return np.array(values, np.float64)


def test_equal_members_get_the_cheapest_nodes() -> None:
    costs = row(5, 1, INF, 3)
    assert spread_out([costs, costs]) == (1, 3)
    assert spread_out([costs] * 3) == (1, 3, 0)
    assert spread_out([costs] * 4) is None
    assert spread_out([costs] * 5) is None


def test_an_unequal_member_moves_over_where_another_can_only_be_there() -> None:
    assert spread_out([row(1, 2), row(1, INF)]) == (1, 0)
    assert spread_out([row(1, 2, INF), row(1, INF, INF), row(INF, 1, INF)]) is None


def test_the_earliest_common_start_is_when_the_last_has_room() -> None:
    arrivals = row(-INF, 50, 20, INF)
    assert earliest([arrivals, arrivals]) == (20, (0, 2))
    assert earliest([arrivals] * 3) == (50, (0, 1, 2))
    assert earliest([arrivals] * 4) is None
    assert earliest([row(-INF, -INF)] * 1) == (-INF, (0,))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_leases_of_all_members_or_of_none(size: int) -> None:
    grid = Grid([factories.node("n1", 1), factories.node("n2", 2), factories.node("n3", 0)])
    policy = POLICIES["best-fit"](grid, Mix(), 1)
    shape = grid.shape(factories.request(gpus="1"))
    allowed = np.ones(3, np.bool_)
    members = [(f"a{number}", shape, allowed) for number in range(size)]
    leases = place(grid, members, policy.costs, policy.cards, 7.0)
    if size == 3:
        assert leases is None
    else:
        assert leases is not None
        assert [lease.attempt_id for lease in leases] == [attempt for attempt, _, _ in members]
        assert len({lease.node for lease in leases}) == size
        assert all(len(lease.shares) == 1 for lease in leases)
    assert place(grid, [("a", shape, ~allowed)], policy.costs, policy.cards, 7.0) is None


COSTS = st.lists(st.lists(st.sampled_from([1.0, 2.0, INF]), min_size=4, max_size=4), min_size=1, max_size=4)


@given(COSTS)
def test_a_place_for_all_is_found_if_there_is_one(rows: list[list[float]]) -> None:
    costs = [row(*one) for one in rows]
    found = spread_out(costs)
    ways = permutations(range(4), len(costs))
    possible = any(all(np.isfinite(one[node]) for one, node in zip(costs, way, strict=True)) for way in ways)
    assert (found is not None) == possible
    if found is not None:
        assert len(set(found)) == len(costs)
        assert all(np.isfinite(one[node]) for one, node in zip(costs, found, strict=True))


@given(st.lists(st.lists(st.sampled_from([-INF, 5.0, 9.0, INF]), min_size=3, max_size=3), min_size=1, max_size=3))
def test_nothing_is_earlier_than_the_earliest(rows: list[list[float]]) -> None:
    arrivals = [row(*one) for one in rows]
    possible = [
        at for at in (-INF, 5.0, 9.0) if spread_out([np.where(one <= at, 0.0, INF) for one in arrivals]) is not None
    ]
    found = earliest(arrivals)
    assert (None if found is None else found[0]) == (min(possible) if possible else None)
