"""`dot-product`: where what is free and what is asked for, as vectors, have the smallest product.

From Tetris (SIGCOMM 2014), as compared in "Beware of Fragmentation" (USENIX ATC 2023): cpus and the sum of the GPUs,
both measured in the largest node of the cluster; a whole percentage, so that near ties are ties.
"""

from __future__ import annotations

import numpy as np

from commonage.scheduler.model.shapes import Floats, Ints, Shape
from commonage.scheduler.policies.devices import idle_milli, largest, taken_milli
from commonage.scheduler.policies.scored import Scored


class DotProduct(Scored):
    """A small product is good."""

    def score(self, shape: Shape, nodes: Ints) -> Floats:
        """[n]: whole per cent, 100 where nothing is free of what is asked for."""
        most_cpus, most_milli = largest(self.grid)
        cpus = self.grid.cpus[nodes] / most_cpus * (shape.cpus_milli / most_cpus)
        milli = idle_milli(self.grid, nodes) / most_milli * (taken_milli(self.grid, shape, nodes) / most_milli)
        return np.floor((1.0 - (cpus + milli) / 2) * 100)
