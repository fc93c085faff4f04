"""What every policy of the registry must keep to, on random clusters and on those that change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import REQUESTS, clusters
from tests.unit.scheduler.policies.rules import places_what_fits, sees_what_is_new

from commonage.domain.nodes import Node
from commonage.domain.requests import Request
from commonage.scheduler.policies.registry import DEFAULT, POLICIES


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(clusters(), st.lists(REQUESTS, min_size=1, max_size=12))
def test_every_policy_places_what_fits_where_it_fits(name: str, cluster: list[Node], asked: list[Request]) -> None:
    places_what_fits(POLICIES[name], cluster, asked)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_sees_nodes_that_come_and_devices_that_are_new_to_it(name: str) -> None:
    sees_what_is_new(POLICIES[name])


def test_the_default_is_one_of_them() -> None:
    assert DEFAULT in POLICIES
