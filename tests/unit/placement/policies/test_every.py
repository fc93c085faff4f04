"""What every policy of the registry must keep to, on random fleets and on those that change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.placement.fleets import GIB, REQUESTS, fleets
from tests.unit.placement.policies.machines import choose, make, put, wish

from commonage.domain.fleet import Node
from commonage.domain.requests import Request
from commonage.placement.fragmentation import Mix
from commonage.placement.grid import Grid
from commonage.placement.policies.registry import DEFAULT, POLICIES
from commonage.testing import factories


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(fleets(), st.lists(REQUESTS, min_size=1, max_size=12))
def test_every_policy_places_what_fits_where_it_fits(name: str, fleet: list[Node], asked: list[Request]) -> None:
    grid = Grid(fleet)
    policy = POLICIES[name](grid, Mix.of(asked), 1)
    for number, request in enumerate(asked):
        shape = grid.shape(request)
        policy.arrived(shape)
        costs = policy.costs(shape).copy()
        assert (np.isfinite(costs) == grid.fits(shape, np.arange(len(fleet)))).all()
        assert (policy.costs(shape) == costs).all()
        if np.isfinite(costs).any():
            best = int(np.argmin(costs))
            cards = list(policy.cards(shape, best))
            assert len(set(cards)) == shape.cards
            assert all(grid.cards_fit(shape, np.array([best]))[0, cards])
            grid.take(grid.lease(shape, best, cards, str(number), 0.0))
    assert (grid.free_milli >= 0).all() and (grid.free_mib >= 0).all() and (grid.cpus >= 0).all()


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_sees_nodes_that_come_and_cards_that_are_new_to_it(name: str) -> None:
    grid, policy = make(name, factories.node("a", 1, cpus_milli=1000))
    assert put(grid, policy, wish("1")) == (0, [0])
    assert choose(grid, policy, grid.shape(wish("1"))) is None
    card = factories.device(0, uuid="H100-0", model="H100", memory_mib=80 * GIB)
    grid.put([factories.node("b", [card], cpus_milli=2000)])
    assert put(grid, policy, wish("1")) == (1, [0])


def test_the_default_is_one_of_them() -> None:
    assert DEFAULT in POLICIES
