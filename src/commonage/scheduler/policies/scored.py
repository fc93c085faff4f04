"""Base of policies that score each node independently of the others: a cached row for each shape.

A subclass implements `score`, and `devices` if the tightest device is not right. Not for policies that compare nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from commonage.scheduler.model.grid import Grid, Rows
from commonage.scheduler.model.shapes import Floats, Ints, Shape
from commonage.scheduler.policies.devices import tightest
from commonage.scheduler.policies.mix import WorkloadMix


class Scored(ABC):
    """A policy over one grid that neither learns nor decides randomly."""

    def __init__(self, grid: Grid, mix: WorkloadMix, seed: int) -> None:
        self.grid = grid
        self._costs = Rows(grid, self._cost)

    @abstractmethod
    def score(self, shape: Shape, nodes: Ints) -> Floats | Ints:
        """[len(nodes)]: the score of each node for the shape, higher is better; meaningless where it does not fit."""

    def arrived(self, shape: Shape) -> None:  # noqa: B027  optional hook
        """Nothing to learn."""

    def costs(self, shape: Shape) -> Floats:
        """[N]: the score, negative; inf where the shape does not fit."""
        return self._costs.of(shape)

    def devices(self, shape: Shape, node: int) -> Sequence[int]:
        """The tightest fitting device, or the first whole ones."""
        return tightest(self.grid, shape, node)

    def _cost(self, shape: Shape, nodes: Ints) -> Floats:
        return np.where(self.grid.fits(shape, nodes), -1.0 * self.score(shape, nodes), np.inf)
