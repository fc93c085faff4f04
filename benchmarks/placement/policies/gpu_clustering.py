"""`gpu-clustering`: beside its like, so that a node takes either parts of GPUs, or one GPU, or two, and so on.

As compared in "Beware of Fragmentation" (USENIX ATC 2023), which has the idea from Gandiva (OSDI 2018). What takes no
GPU goes to the first node that has room.
"""

from __future__ import annotations

import numpy as np

from commonage.scheduler.model.grid import Grid, Row
from commonage.scheduler.model.shapes import Bools, Ints, Shape
from commonage.scheduler.policies.devices import idle_milli, largest
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.scored import Scored

KINDS = 64
"""Parts of GPUs, one GPU, two, ... ; whatever takes more counts as the last kind."""


class GpuClustering(Scored):
    """Company of the same kind is good, none is middling, other company is bad; fuller is better."""

    def __init__(self, grid: Grid, mix: WorkloadMix, seed: int) -> None:
        super().__init__(grid, mix, seed)
        self._kinds = Row(grid)

    def score(self, shape: Shape, nodes: Ints) -> Ints:
        """[n]: up to 100 among its like alone, to 75 among others as well, to 50 alone, to 25 among others only."""
        if not shape.devices:
            return np.zeros(len(nodes), np.int64)
        present = self._kinds.of(self._present)[nodes]
        kinds = present.sum(axis=1)
        like = present[:, 0 if shape.is_part else min(shape.devices, KINDS - 1)]
        company = np.where(like, np.where(kinds == 1, 75, 50), np.where(kinds == 0, 25, 0))
        most = largest(self.grid)[1]
        fuller: Ints = 25 * (most - idle_milli(self.grid, nodes)) // most
        return company + fuller

    def _present(self, nodes: Ints) -> Bools:
        """[n, KINDS]: which kinds of workloads with GPUs each node has."""
        present = np.zeros((len(nodes), KINDS), np.bool_)
        for row, number in enumerate(nodes):
            for allocation in self.grid.held_on(int(number)):
                if allocation.shares:
                    whole = allocation.shares[0].whole
                    present[row, min(len(allocation.shares), KINDS - 1) if whole else 0] = True
        return present
