"""Decides the number of nodes of a node pool: a pure function of the queue, the existing nodes and the pool's policy.

It places pending requests on simulated nodes of the pool's kind, one after the other. A request that fits on no node
that is being created needs a new one. Called by the node pool loop; the API asks which requests a pool could serve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from commonage.domain.nodes import Node, NodePoolPolicy, PendingNode
from commonage.domain.reasons import Reason, notes
from commonage.domain.reasons.waiting import NodeRequested
from commonage.domain.requests import Request
from commonage.scheduler.model.grid import Grid

_IDLE = notes.PoolIdle()


@dataclass(frozen=True, slots=True)
class PendingRequest:
    request: Request
    since: float


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node of the pool. `coming`: it is being created. `leaving`: it is draining and will be removed. `idle_since` is
    None while the node is busy, or before it has joined; not for a request that can be taken back.
    """

    name: str
    coming: bool = False
    leaving: bool = False
    idle_since: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    add: int = 0
    remove: tuple[str, ...] = ()
    why: Reason = _IDLE


def decide_scaling(
    policy: NodePoolPolicy,
    members: Sequence[PoolNode],
    waiting: Sequence[PendingRequest],
    now: float,
    without_gpus: str = "",
) -> ScalingDecision:
    """Keeps the policy's minimum, never exceeds its maximum (leaving nodes count), never adds and removes at once.

    `without_gpus`: the newest node, if it brought none although the pool declares some. Then none is added.
    """
    staying = [member for member in members if not member.leaving]
    count, room = len(staying), 0 if without_gpus else max(0, policy.most - len(members))
    if count < policy.least and room:
        return ScalingDecision(min(policy.least - count, room), why=notes.PoolBelowMinimum(minimum=policy.least))
    patient = [pending for pending in waiting if now - pending.since >= policy.wait_s]
    coming = sum(member.coming for member in staying)
    wanted, served = nodes_needed([pending.request for pending in patient], policy, coming, room)
    if wanted:
        return ScalingDecision(wanted, why=notes.PoolServesQueue(workloads=served, nodes=wanted))
    if count > policy.most:
        idle = _longest_idle(staying, count - policy.most)
        return ScalingDecision(remove=idle, why=notes.PoolAboveMaximum(maximum=policy.most))
    if any(node_could_run(policy, pending.request) for pending in waiting):  # then none is removed
        if without_gpus:
            return ScalingDecision(why=notes.PoolNodesLackGpus(node=without_gpus, gpus=policy.kind.gpus))
        return ScalingDecision(why=_why_not(policy, members, coming, bool(patient)))
    long_idle = [
        member for member in staying if member.idle_since is not None and now - member.idle_since >= policy.idle_s
    ]
    idle = _longest_idle(long_idle, max(0, count - policy.least))
    ran = any(member.name in idle and not member.coming for member in members)
    return ScalingDecision(remove=idle, why=notes.PoolNodesIdle(idle_s=policy.idle_s) if ran else _IDLE)


def nodes_needed(requests: Sequence[Request], policy: NodePoolPolicy, coming: int, most: int) -> tuple[int, int]:
    """(new machines that the requests need next to `coming` ones, at most `most`; requests that the new ones serve)."""
    grid = Grid([_node(policy, number) for number in range(coming)])
    served = 0
    for number, request in enumerate(requests):
        on = _place(grid, request, number)
        if on is None and len(grid.nodes) - coming < most and node_could_run(policy, request):
            grid.put([_node(policy, len(grid.nodes))])
            on = _place(grid, request, number)
        served += on is not None and on >= coming
    return len(grid.nodes) - coming, served


def max_nodes_for(policies: Sequence[NodePoolPolicy], request: Request) -> int:
    """The number of nodes, over all pools, that could run the request."""
    return sum(policy.most for policy in policies if node_could_run(policy, request))


@lru_cache(maxsize=4096)
def node_could_run(policy: NodePoolPolicy, request: Request) -> bool:
    return _place(Grid([_node(policy, 0)]), request, 0) is not None


def expected_node(coming: Sequence[PendingNode], request: Request, now: float) -> NodeRequested | None:
    """The first node being created that could run the request; None without one. Rounds up to whole minutes."""
    expected = [(node.since + (node.took_s or node.policy.join_s) - now, node) for node in coming]
    able = [(left, node) for left, node in expected if node_could_run(node.policy, request)]
    if not able:
        return None
    left, node = min(able, key=lambda pair: pair[0])
    pool = node.policy.name
    if left <= 0:
        return NodeRequested(pool=pool, requested_s=now - node.since)
    whole_minutes = 60.0 * max(1, math.ceil(left / 60))
    return NodeRequested(pool=pool, expected_in_s=whole_minutes, is_measured=node.took_s is not None)


def _node(policy: NodePoolPolicy, number: int) -> Node:
    return policy.kind.node(f"{policy.name}-{number}", policy.site, policy.engine)


def _place(grid: Grid, request: Request, number: int) -> int | None:
    """Place the request on the first node that fits; returns its number."""
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
        return notes.PoolNodesPending(nodes=coming)
    if is_patient and len(members) >= policy.most:
        return notes.PoolAtMaximum(maximum=policy.most, leaving=sum(member.leaving for member in members))
    return notes.PoolWaits(wait_s=policy.wait_s)


def _longest_idle(members: Sequence[PoolNode], most: int) -> tuple[str, ...]:
    idle = sorted((member.idle_since, member.name) for member in members if member.idle_since is not None)
    return tuple(name for _, name in idle[:most])
