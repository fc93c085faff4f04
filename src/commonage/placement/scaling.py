"""How many machines a fleet is to have: a pure function of what waits, what is there and the policy.

Work that waits is laid upon machines of the kind as the planner would lay it, one after the other; what does not go
onto a machine that is on its way takes a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonage.domain.fleet import Node
from commonage.domain.fleets import FleetPolicy
from commonage.domain.quantities import format_duration
from commonage.domain.requests import Request
from commonage.placement.grid import Grid


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits, since when, and whether more machines of the same would help it (no quota refuses it)."""

    request: Request
    since: float


@dataclass(frozen=True, slots=True)
class Member:
    """A machine of the fleet. `idle_since` is None while it runs something, or is on its way (`joined` False)."""

    name: str
    joined: bool
    idle_since: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do: so many more, or these ones less; and why, in words."""

    add: int = 0
    remove: tuple[str, ...] = ()
    why: str = ""


def decide(policy: FleetPolicy, members: Sequence[Member], waiting: Sequence[Waiting], now: float) -> Decision:
    """The next step. Never fewer than the policy's least, never more than its most; never both in one step."""
    count = len(members)
    if count < policy.least:
        return Decision(policy.least - count, why=f"at least {policy.least} are to be there")
    patient = [one for one in waiting if now - one.since >= policy.wait_s]
    coming = sum(not one.joined for one in members)
    wanted, served = machines_for([one.request for one in patient], policy, coming, policy.most - count)
    if wanted:
        works = "one workload that waits" if served == 1 else f"{served} workloads that wait"
        return Decision(wanted, why=f"{works} would start on {_more(wanted)}")
    if count > policy.most:
        idle = _longest_idle(members, count - policy.most)
        return Decision(remove=idle, why=f"at most {policy.most} are to be there")
    if waiting and _would_help(waiting, policy):
        return Decision(why=_why_not(policy, count, coming, bool(patient)))
    long_idle = [one for one in members if one.idle_since is not None and now - one.idle_since >= policy.idle_s]
    idle = _longest_idle(long_idle, count - policy.least)
    why = f"idle for {format_duration(policy.idle_s)}" if idle else "nothing waits for it"
    return Decision(remove=idle, why=why)


def machines_for(requests: Sequence[Request], policy: FleetPolicy, coming: int, most: int) -> tuple[int, int]:
    """How many new machines these would fill beside `coming` ones, at most `most`; and for how many requests."""
    grid = Grid([_machine(policy, number) for number in range(coming)])
    served = 0
    for number, request in enumerate(requests):
        on = _laid(grid, request, number)
        if on is None and len(grid.nodes) - coming < most:
            grid.put([_machine(policy, len(grid.nodes))])
            on = _laid(grid, request, number)
            if on is None:  # it fits on no machine of this kind: none for it
                grid.remove(grid.nodes[-1].name)
        served += on is not None and on >= coming
    return len(grid.nodes) - coming, served


def most_that_fit(policies: Sequence[FleetPolicy], request: Request) -> int:
    """So many machines that could run this may be rented at once."""
    return sum(policy.most for policy in policies if machines_for([request], policy, 0, 1)[0])


def _machine(policy: FleetPolicy, number: int) -> Node:
    return policy.kind.node(f"{policy.name}-{number}", policy.site, policy.engine)


def _laid(grid: Grid, request: Request, number: int) -> int | None:
    """The number of the machine on which it was laid: the first with room."""
    shape = grid.shape(request)
    fitting = np.flatnonzero(grid.fits(shape, np.arange(len(grid.nodes))))
    if not fitting.size:
        return None
    cards = np.flatnonzero(grid.cards_fit(shape, fitting[:1])[0])[: shape.cards]
    node = int(fitting[0])
    grid.take(grid.lease(shape, node, [int(card) for card in cards], f"waiting-{number}", 0.0))
    return node


def _would_help(waiting: Sequence[Waiting], policy: FleetPolicy) -> bool:
    """True if any of them would start on a machine of this kind: then none goes."""
    return any(machines_for([one.request], policy, 0, 1)[0] for one in waiting)


def _why_not(policy: FleetPolicy, count: int, coming: int, is_patient: bool) -> str:
    if coming:
        return f"{coming} {'is' if coming == 1 else 'are'} on the way for what waits"
    if is_patient and count >= policy.most:
        return f"work waits, but at most {policy.most} are to be there"
    return f"work waits, but not for {format_duration(policy.wait_s)} yet"


def _longest_idle(members: Sequence[Member], most: int) -> tuple[str, ...]:
    idle = sorted((one.idle_since, one.name) for one in members if one.idle_since is not None)
    return tuple(name for _, name in idle[:most])


def _more(count: int) -> str:
    return "one more machine" if count == 1 else f"{count} more machines"
