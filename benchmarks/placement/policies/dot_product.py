"""`dot-product`: the node with the smallest dot product of free and requested resources.

From Tetris (SIGCOMM 2014), as compared in "Beware of Fragmentation" (USENIX ATC 2023): CPUs and the sum of the GPUs,
both relative to the largest node; a whole percentage, so that near ties are ties.
"""

from __future__ import annotations

import numpy as np

from commonage.scheduler.model.shapes import Floats, Ints, Shape
from commonage.scheduler.policies.scored import Scored, idle_milli, largest, taken_milli


class DotProduct(Scored):
    """Prefers a small dot product."""

    def score(self, shape: Shape, nodes: Ints) -> Floats:
        """[n]: whole per cent, 100 if nothing of the requested resources is free."""
        max_cpus, max_milli = largest(self.grid)
        cpus = self.grid.cpus[nodes] / max_cpus * (shape.cpus_milli / max_cpus)
        milli = idle_milli(self.grid, nodes) / max_milli * (taken_milli(self.grid, shape, nodes) / max_milli)
        return np.floor((1.0 - (cpus + milli) / 2) * 100)
