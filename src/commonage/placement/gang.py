"""A gang: its members start at once, each on a node of its own, or none does.

The pass asks where, for a gang as for one alone. That all of a gang wait, and may start by quotas and reservations, is
settled before; when it could start later, backfill.py tells.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from commonage.placement.affinity import nearest
from commonage.placement.shapes import Floats


def spread_out(costs: Floats, count: int, holds: Callable[[int], bool]) -> tuple[int, ...] | None:
    """The numbers of `count` different nodes for as many equal members, the cheapest first; None if not all can start.

    `costs` [N] are inf where no member may be. Of nodes nearly as cheap those that `holds` are taken first.
    """
    if np.count_nonzero(np.isfinite(costs)) < count:
        return None
    left, chosen = costs.copy(), []
    for _ in range(count):
        chosen.append(nearest(left, holds))
        left[chosen[-1]] = np.inf
    return tuple(chosen)
