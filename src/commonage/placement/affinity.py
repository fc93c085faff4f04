"""Among places that are nearly as good, one where the environment runs already: its image and its files are there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from commonage.placement.shapes import Floats

NEAR_TIE = 0.01
"""Nearly as good: within a hundredth of the way from the best place to the worst. More would undo the policy."""


def nearest(costs: Floats, holds: Callable[[int], bool]) -> int:
    """The node to take: of those nearly as cheap as the cheapest, the cheapest that `holds`; else the cheapest.

    `costs` [N] are inf where nothing may start, which is not so everywhere.
    """
    best = int(np.argmin(costs))
    if holds(best):
        return best
    possible = np.flatnonzero(np.isfinite(costs))
    bound = costs[best] + NEAR_TIE * (costs[possible].max() - costs[best])
    near = possible[costs[possible] <= bound]
    return next((number for number in near[np.argsort(costs[near], kind="stable")].tolist() if holds(number)), best)
