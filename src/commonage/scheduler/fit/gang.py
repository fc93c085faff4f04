"""Places a gang: its members start together, each on a different node, or none starts.

The pass calls it for gangs in the same way as for single requests. Membership, quotas and reservations are checked
before; backfill.py tells when it could start later.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from commonage.scheduler.fit.affinity import nearest
from commonage.scheduler.model.shapes import Floats


def spread_out(costs: Floats, count: int, holds: Callable[[int], bool]) -> tuple[int, ...] | None:
    """The numbers of `count` different nodes for equal members, the cheapest first; None if not all can start.

    `costs` [N] are inf where no member may be. Near ties prefer nodes for which `holds` is true.
    """
    if np.count_nonzero(np.isfinite(costs)) < count:
        return None
    left, chosen = costs.copy(), []
    for _ in range(count):
        chosen.append(nearest(left, holds))
        left[chosen[-1]] = np.inf
    return tuple(chosen)
