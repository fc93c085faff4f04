"""Decides the number of nodes of a node pool: a pure function of the queue, the existing nodes and the policy.

Waiting requests are placed on nodes of the pool's kind as the planner would place them, one after the other; those that
fit on no coming node need a new one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from commonage.domain.node_pools import Coming, NodePoolPolicy
from commonage.domain.nodes import Node
from commonage.domain.reasons import Reason, notes
from commonage.domain.reasons.waiting import NodeRequested
from commonage.domain.requests import Request
from commonage.scheduler.model.grid import Grid

_IDLE = notes.PoolIdle()


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A waiting request, its start of waiting, and whether more nodes of the kind help (no quota refuses it)."""

    request: Request
    since: float


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node of the pool in the cloud. `coming`: it is being created. `leaving`: it takes no work and will be
    removed. `idle_since` is None while it runs something, or before it has joined.
    """

    name: str
    coming: bool = False
    leaving: bool = False
    idle_since: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The next step: nodes to add, or nodes to remove; and the reason."""

    add: int = 0
    remove: tuple[str, ...] = ()
    why: Reason = _IDLE


def decide_scaling(
    policy: NodePoolPolicy, members: Sequence[PoolNode], waiting: Sequence[PendingRequest], now: float
) -> ScalingDecision:
    """The next step. It keeps the policy's minimum, never exceeds its maximum (leaving nodes count), and never adds
    and removes in one step.
    """
    staying = [one for one in members if not one.leaving]
    count, room = len(staying), max(0, policy.most - len(members))
    if count < policy.least and room:
        return ScalingDecision(min(policy.least - count, room), why=notes.PoolBelowMinimum(minimum=policy.least))
    patient = [one for one in waiting if now - one.since >= policy.wait_s]
    coming = sum(one.coming for one in staying)
    wanted, served = nodes_needed([one.request for one in patient], policy, coming, room)
    if wanted:
        return ScalingDecision(wanted, why=notes.PoolServesQueue(workloads=served, nodes=wanted))
    if count > policy.most:
        idle = _longest_idle(staying, count - policy.most)
        return ScalingDecision(remove=idle, why=notes.PoolAboveMaximum(maximum=policy.most))
    if any(node_could_run(policy, one.request) for one in waiting):  # then none is removed
        return ScalingDecision(why=_why_not(policy, members, coming, bool(patient)))
    long_idle = [one for one in staying if one.idle_since is not None and now - one.idle_since >= policy.idle_s]
    idle = _longest_idle(long_idle, max(0, count - policy.least))
    return ScalingDecision(remove=idle, why=notes.PoolNodesIdle(idle_s=policy.idle_s) if idle else _IDLE)


def nodes_needed(requests: Sequence[Request], policy: NodePoolPolicy, coming: int, most: int) -> tuple[int, int]:
    """The number of new machines for these requests in addition to `coming` ones, at most `most`; and the number of
    requests that they serve.
    """
    grid = Grid([_node(policy, number) for number in range(coming)])
    served = 0
    for number, request in enumerate(requests):
        on = _laid(grid, request, number)
        if on is None and len(grid.nodes) - coming < most and node_could_run(policy, request):
            grid.put([_node(policy, len(grid.nodes))])
            on = _laid(grid, request, number)
        served += on is not None and on >= coming
    return len(grid.nodes) - coming, served


def max_nodes_for(policies: Sequence[NodePoolPolicy], request: Request) -> int:
    """The number of nodes able to run this that may be rented at once."""
    return sum(policy.most for policy in policies if node_could_run(policy, request))


@lru_cache(maxsize=4096)
def node_could_run(policy: NodePoolPolicy, request: Request) -> bool:
    """True if it fits on an empty node of this kind."""
    return _laid(Grid([_node(policy, 0)]), request, 0) is not None


def expected_node(coming: Sequence[Coming], request: Request, now: float) -> NodeRequested | None:
    """The coming node that arrives first of those that could run it; None if there is no such node. Times are
    rounded to whole minutes.
    """
    expected = [(one.since + (one.took_s or one.policy.join_s) - now, one) for one in coming]
    able = [(left, one) for left, one in expected if node_could_run(one.policy, request)]
    if not able:
        return None
    left, one = min(able, key=lambda pair: pair[0])
    pool = one.policy.name
    if left <= 0:
        return NodeRequested(pool=pool, requested_s=now - one.since)
    whole_minutes = 60.0 * max(1, math.ceil(left / 60))
    return NodeRequested(pool=pool, expected_in_s=whole_minutes, is_measured=one.took_s is not None)


def _node(policy: NodePoolPolicy, number: int) -> Node:
    return policy.kind.node(f"{policy.name}-{number}", policy.site, policy.engine)


def _laid(grid: Grid, request: Request, number: int) -> int | None:
    """The number of the node on which it was placed: the first with room."""
    shape = grid.shape(request)
    fitting = np.flatnonzero(grid.fits(shape, np.arange(len(grid.nodes))))
    if not fitting.size:
        return None
    devices = np.flatnonzero(grid.devices_fit(shape, fitting[:1])[0])[: shape.devices]
    node = int(fitting[0])
    grid.take(grid.allocation(shape, node, [int(device) for device in devices], f"waiting-{number}", 0.0))
    return node


def _why_not(policy: NodePoolPolicy, members: Sequence[PoolNode], coming: int, is_patient: bool) -> Reason:
    if coming:
        return notes.PoolNodesComing(nodes=coming)
    if is_patient and len(members) >= policy.most:
        return notes.PoolAtMaximum(maximum=policy.most, leaving=sum(one.leaving for one in members))
    return notes.PoolWaits(wait_s=policy.wait_s)


def _longest_idle(members: Sequence[PoolNode], most: int) -> tuple[str, ...]:
    idle = sorted((one.idle_since, one.name) for one in members if one.idle_since is not None)
    return tuple(name for _, name in idle[:most])
