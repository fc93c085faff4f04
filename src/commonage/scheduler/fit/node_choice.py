"""Chooses nodes by the policy's costs. The members of a gang get different nodes, or none starts.

Called by the pass for single requests and gangs, after quotas, reservations and backfill were checked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from commonage.scheduler.model.shapes import Floats

NEAR_TIE = 0.01
"""Nodes are nearly equal within this part of the range from the best node to the worst. More would override the policy.
"""


def choose_nodes(costs: Floats, count: int, runs_environment: Callable[[int], bool]) -> tuple[int, ...] | None:
    """The numbers of `count` different nodes, the cheapest first; None if not all members can start.

    `costs` [N] are inf where no member may start. Near ties prefer nodes that already run the environment: its image
    and files are there.
    """
    if np.count_nonzero(np.isfinite(costs)) < count:
        return None
    left, chosen = costs.copy(), []
    for _ in range(count):
        chosen.append(cheapest_node(left, runs_environment))
        left[chosen[-1]] = np.inf
    return tuple(chosen)


def cheapest_node(costs: Floats, runs_environment: Callable[[int], bool]) -> int:
    """The cheapest near tie that runs the environment, else the cheapest node. At least one cost must be finite."""
    best = int(np.argmin(costs))
    if runs_environment(best):
        return best
    possible = np.flatnonzero(np.isfinite(costs))
    bound = costs[best] + NEAR_TIE * (costs[possible].max() - costs[best])
    near = possible[costs[possible] <= bound]
    by_cost = near[np.argsort(costs[near], kind="stable")].tolist()
    return next((number for number in by_cost if runs_environment(number)), best)
