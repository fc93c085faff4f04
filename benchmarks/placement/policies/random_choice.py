"""`random`: any node and GPU on which the request fits; the floor for every other policy.

Deterministic for a seed, a shape and a state of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonage.scheduler.model.grid import Grid, Rows
from commonage.scheduler.model.shapes import Bools, Floats, Ints, Shape
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.scored import first_fitting


class RandomChoice:
    """The policy over one grid. It does not learn."""

    def __init__(self, grid: Grid, mix: WorkloadMix, seed: int) -> None:
        self._grid, self._seed = grid, seed
        self._fits = Rows(grid, self._fit)

    def arrived(self, shape: Shape) -> None:
        """Nothing to learn."""

    def costs(self, shape: Shape, among: Bools | None = None) -> Floats:
        """[N]: random, 0 to 1."""
        fits = self._fits.of(shape, among)
        return np.where(fits, self._chance(shape, 0).random(len(fits)), np.inf)

    def devices(self, shape: Shape, node: int) -> Sequence[int]:
        """Any fitting GPU; for whole GPUs the first ones."""
        if not shape.is_part:
            return first_fitting(self._grid, shape, node)
        fitting = np.flatnonzero(self._grid.devices_fit(shape, np.array([node]))[0])
        return [int(self._chance(shape, 1).choice(fitting))]

    def _fit(self, shape: Shape, nodes: Ints) -> Bools:
        return self._grid.fits(shape, nodes)

    def _chance(self, shape: Shape, of: int) -> np.random.Generator:
        """The generator for a choice of nodes (`of` 0) or of GPUs (1)."""
        return np.random.default_rng([self._seed, of, shape.number, self._grid.epoch, self._grid.changes])
