"""`best-fit`: where least is left over, cpus and GPUs weighed alike.

As compared in "Beware of Fragmentation" (USENIX ATC 2023): both are measured in the largest machine of the fleet, and
the score is a whole percentage, so that near ties are ties.
"""

from __future__ import annotations

import numpy as np

from commonage.placement.policies.cards import idle_milli, largest, taken_milli
from commonage.placement.policies.scored import Scored
from commonage.placement.shapes import Floats, Ints, Shape


class BestFit(Scored):
    """Little left over is good."""

    def score(self, shape: Shape, nodes: Ints) -> Floats:
        """[n]: whole per cent of the largest machine that would not be left over."""
        most_cpus, most_milli = largest(self.grid)
        cpus = (self.grid.cpus[nodes] - shape.cpus_milli) / most_cpus
        milli = (idle_milli(self.grid, nodes) - taken_milli(self.grid, shape, nodes)) / most_milli
        return np.floor((1.0 - (0.5 * cpus + 0.5 * milli)) * 100)
