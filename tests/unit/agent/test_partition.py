"""When a node is in contact with its site, and when it is partitioned and pauses its workloads."""

from __future__ import annotations

import pytest

from commonage.agent.partition import Quorum
from commonage.ports.agents import PARTITIONED_AFTER_S

SITE = ("manager", "worker1", "worker2", "worker3")


def silent(vote: Quorum, since: float, *, answering: tuple[str, ...] = ()) -> None:
    """Three looks in which the control plane does not answer."""
    for began in (since + 4, since + 5, since + 6):
        vote.record_probe(False, answering, began)


def test_node_that_reaches_nobody_is_partitioned_after_a_while() -> None:
    vote = Quorum("worker1", SITE, 100.0)
    silent(vote, 100.0)
    assert not vote.is_partitioned(100.0 + PARTITIONED_AFTER_S - 0.1)
    assert vote.is_partitioned(100.0 + PARTITIONED_AFTER_S)
    vote.control_answered(120.0)  # the control plane is back
    assert not vote.is_partitioned(121.0)


def test_control_plane_alone_is_contact() -> None:
    vote = Quorum("worker1", SITE, 0.0)
    for began in range(1, 60):
        vote.record_probe(True, (), began)
        assert not vote.is_partitioned(began)


@pytest.mark.parametrize(
    ("answering", "cut_off"),
    [
        (("worker2", "worker3"), False),  # with itself three of four: the control plane's node is off
        (("worker2",), True),  # half is not more than half: the others may be on the control plane's side
        ((), True),
        (("stranger", "another", "third"), True),  # who was not told of does not count
    ],
)
def test_majority_of_neighbors_is_contact_and_half_is_not(answering: tuple[str, ...], cut_off: bool) -> None:
    vote = Quorum("worker1", SITE, 0.0)
    silent(vote, 0.0, answering=answering)
    assert vote.is_partitioned(PARTITIONED_AFTER_S) is cut_off


def test_two_parts_of_a_site_are_never_both_in_contact() -> None:
    """However a cable parts it: the part without the control plane holds on only with more than half."""
    for there in range(1, len(SITE)):
        part = SITE[-there:]
        vote = Quorum(part[0], SITE, 0.0)
        silent(vote, 0.0, answering=part[1:])
        assert vote.is_partitioned(PARTITIONED_AFTER_S) is (2 * there <= len(SITE))


@pytest.mark.parametrize("neighbors", [(), ("worker1",), ("manager", "worker1")])
def test_too_few_neighbors_are_no_contact(neighbors: tuple[str, ...]) -> None:
    vote = Quorum("worker1", neighbors, 0.0)
    silent(vote, 0.0, answering=("manager",))
    assert vote.is_partitioned(PARTITIONED_AFTER_S)


def test_node_too_busy_to_probe_is_not_partitioned() -> None:
    vote = Quorum("worker1", SITE, 0.0)
    vote.record_probe(False, (), 4.0)
    assert not vote.is_partitioned(600.0)
    silent(vote, 600.0)
    assert vote.is_partitioned(607.0)
