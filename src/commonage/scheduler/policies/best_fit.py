"""`best-fit`: the node with the least left over; CPUs and GPUs have equal weight.

As compared in "Beware of Fragmentation" (USENIX ATC 2023): both are measured relative to the largest node, and the
score is a whole percentage, so that near ties are ties.
"""

from __future__ import annotations

import numpy as np

from commonage.scheduler.model.shapes import Floats, Ints, Shape
from commonage.scheduler.policies.scored import Scored, idle_milli, largest, taken_milli


class BestFit(Scored):
    """Prefers little left over."""

    def score(self, shape: Shape, nodes: Ints) -> Floats:
        """[n]: 100 minus the remaining resources, in whole per cent of the largest node."""
        max_cpus, max_milli = largest(self.grid)
        cpus = (self.grid.cpus[nodes] - shape.cpus_milli) / max_cpus
        milli = (idle_milli(self.grid, nodes) - taken_milli(self.grid, shape, nodes)) / max_milli
        return np.floor((1.0 - (0.5 * cpus + 0.5 * milli)) * 100)
