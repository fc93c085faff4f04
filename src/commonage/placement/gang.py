"""A gang: its members start at once, each on a node of its own, or none does.

The pass asks `spread_out` with what a policy says each member costs where, and `place` for the leases; backfill asks
`earliest`. Who may start where at all is settled before: inf in what is given here means never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from commonage.domain.fleet import Lease
from commonage.placement.grid import Grid
from commonage.placement.shapes import Bools, Floats, Shape

CardsOf = Callable[[Shape, int], Sequence[int]]
"""The cards of a node for a shape that fits there: a policy's `cards`, or one that looks beside what is kept."""


def spread_out(costs: Sequence[Floats]) -> tuple[int, ...] | None:
    """The number of a node for each member, all different; None if not all can have one.

    `costs` are [N] for each member, inf where it cannot be. Equal members (the same array) get the cheapest nodes.
    Unequal ones get cheap ones, and whatever it takes that all find a place.
    """
    if all(one is costs[0] for one in costs):
        first = np.argsort(costs[0], kind="stable")[: len(costs)]
        enough = len(first) == len(costs) and bool(np.isfinite(costs[0][first]).all())
        return tuple(first.tolist()) if enough else None
    choices = [np.argsort(one, kind="stable")[: np.count_nonzero(np.isfinite(one))].tolist() for one in costs]
    member_on: dict[int, int] = {}
    for member in sorted(range(len(costs)), key=lambda member: len(choices[member])):
        if not _seat(member, choices, member_on, set()):
            return None
    node_of = {member: node for node, member in member_on.items()}
    return tuple(node_of[member] for member in range(len(costs)))


def _seat(member: int, choices: Sequence[Sequence[int]], member_on: dict[int, int], asked: set[int]) -> bool:
    """Give a member a node, and those who have to move for it another (Kuhn's algorithm, 1955)."""
    for node in choices[member]:
        if node not in member_on:
            member_on[node] = member
            return True
    for node in choices[member]:
        if node not in asked:
            asked.add(node)
            if _seat(member_on[node], choices, member_on, asked):
                member_on[node] = member
                return True
    return False


def earliest(arrivals: Sequence[Floats]) -> tuple[float, tuple[int, ...]] | None:
    """When all members can start at once, and on which nodes; None if nobody can tell.

    `arrivals` are [N] for each member: from when on it fits on each node, inf where never, -inf where it does now.
    """
    instants = np.unique(np.concatenate(arrivals))
    instants = instants[instants < np.inf]
    low, high = 0, len(instants) - 1
    found: tuple[float, tuple[int, ...]] | None = None
    while low <= high:
        middle = (low + high) // 2
        nodes = _by(arrivals, float(instants[middle]))
        if nodes is None:
            low = middle + 1
        else:
            found, high = (float(instants[middle]), nodes), middle - 1
    return found


def _by(arrivals: Sequence[Floats], at: float) -> tuple[int, ...] | None:
    """Nodes for all members at an instant."""
    there = {id(one): np.where(one <= at, 0.0, np.inf) for one in arrivals}
    return spread_out([there[id(one)] for one in arrivals])


def place(
    grid: Grid,
    members: Sequence[tuple[str, Shape, Bools]],
    costs: Callable[[Shape], Floats],
    cards: CardsOf,
    now: float,
) -> tuple[Lease, ...] | None:
    """The leases of all members, in their order, that start now; None if not all of them can.

    `members` are attempt id, shape, and where each may be [N]; `costs` and `cards` those of a policy. The grid stays as
    it is.
    """
    masked: dict[tuple[int, int], Floats] = {}
    for _, shape, mask in members:
        if (shape.number, id(mask)) not in masked:
            masked[shape.number, id(mask)] = np.where(mask, costs(shape), np.inf)
    nodes = spread_out([masked[shape.number, id(mask)] for _, shape, mask in members])
    if nodes is None:
        return None
    return tuple(
        grid.lease(shape, node, cards(shape, node), attempt, now)
        for (attempt, shape, _), node in zip(members, nodes, strict=True)
    )
