"""`random`: any node that has room, any GPU that has it; the floor that every other policy must beat.

It decides by the seed, the shape and what has changed so far: asked twice about the same grid it says the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonage.scheduler.model.grid import Grid, Rows
from commonage.scheduler.model.shapes import Bools, Floats, Ints, Shape
from commonage.scheduler.policies.devices import first_fitting
from commonage.scheduler.policies.mix import WorkloadMix


class RandomChoice:
    """The policy over one grid; it learns nothing."""

    def __init__(self, grid: Grid, mix: WorkloadMix, seed: int) -> None:
        self._grid, self._seed = grid, seed
        self._fits = Rows(grid, self._fit)

    def arrived(self, shape: Shape) -> None:
        """Nothing to learn."""

    def costs(self, shape: Shape) -> Floats:
        """[N]: as chance will have it, 0 to 1."""
        fits = self._fits.of(shape)
        return np.where(fits, self._chance(shape, 0).random(len(fits)), np.inf)

    def devices(self, shape: Shape, node: int) -> Sequence[int]:
        """Any GPU that has it; the first whole ones, which are all alike."""
        if not shape.is_part:
            return first_fitting(self._grid, shape, node)
        fitting = np.flatnonzero(self._grid.devices_fit(shape, np.array([node]))[0])
        return [int(self._chance(shape, 1).choice(fitting))]

    def _fit(self, shape: Shape, nodes: Ints) -> Bools:
        return self._grid.fits(shape, nodes)

    def _chance(self, shape: Shape, of: int) -> np.random.Generator:
        """Dice for one throw: of nodes (0), or of the GPUs of one (1)."""
        return np.random.default_rng([self._seed, of, shape.number, self._grid.epoch, len(self._grid.changed)])
