"""`best-fit`: where least is left over, cpus and GPUs weighed alike.

As in the comparison of "Beware of Fragmentation" (USENIX ATC 2023): both are measured in the largest machine of the
fleet, and the score is a whole percentage, so that near ties are ties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonage.placement.fragmentation import Mix
from commonage.placement.grid import Grid, Rows
from commonage.placement.policies.cards import idle_milli, largest, taken_milli, tightest
from commonage.placement.shapes import Floats, Ints, Shape


class BestFit:
    """The policy over one grid; it learns nothing and leaves nothing to chance."""

    def __init__(self, grid: Grid, mix: Mix, seed: int) -> None:
        self._grid = grid
        self._costs = Rows(grid, self._compute)

    def arrived(self, shape: Shape) -> None:
        """Nothing to learn."""

    def costs(self, shape: Shape) -> Floats:
        """[N]: what would be left over, in whole per cent less than nothing at all (-100..0)."""
        return self._costs.of(shape)

    def cards(self, shape: Shape, node: int) -> Sequence[int]:
        """The tightest card, or the first whole ones."""
        return tightest(self._grid, shape, node)

    def _compute(self, shape: Shape, nodes: Ints) -> Floats:
        grid = self._grid
        most_cpus, most_milli = largest(grid)
        cpus = (grid.cpus[nodes] - shape.cpus_milli) / most_cpus
        milli = (idle_milli(grid, nodes) - taken_milli(grid, shape, nodes)) / most_milli
        score = np.floor((1.0 - (0.5 * cpus + 0.5 * milli)) * 100)
        return np.where(grid.fits(shape, nodes), -score, np.inf)
