"""Among nearly equal nodes, prefers one that already runs the environment: its image and files are there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from commonage.scheduler.model.shapes import Floats

NEAR_TIE = 0.01
"""Nearly equal: within a hundredth of the range from the best node to the worst. More would override the policy."""


def nearest(costs: Floats, holds: Callable[[int], bool]) -> int:
    """The node to take: the cheapest of the near ties for which `holds` is true, else the cheapest of all.

    `costs` [N] are inf where the workload must not start; at least one is finite.
    """
    best = int(np.argmin(costs))
    if holds(best):
        return best
    possible = np.flatnonzero(np.isfinite(costs))
    bound = costs[best] + NEAR_TIE * (costs[possible].max() - costs[best])
    near = possible[costs[possible] <= bound]
    return next((number for number in near[np.argsort(costs[near], kind="stable")].tolist() if holds(number)), best)
