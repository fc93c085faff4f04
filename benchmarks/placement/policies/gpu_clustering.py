"""`gpu-clustering`: next to workloads with the same number of GPUs, so that a node serves one kind of request.

As compared in "Beware of Fragmentation" (USENIX ATC 2023), after Gandiva (OSDI 2018). A request
without a GPU goes to the first node on which it fits.
"""

from __future__ import annotations

import numpy as np

from commonage.scheduler.model.grid import Grid, Row
from commonage.scheduler.model.shapes import Bools, Ints, Shape
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.scored import Scored, idle_milli, largest

KINDS = 64
"""Kinds of requests: a part of a GPU, one GPU, two, ...; larger requests count as the last kind."""


class GpuClustering(Scored):
    """Prefers nodes with the same kind, then empty nodes, then other kinds; fuller nodes first."""

    def __init__(self, grid: Grid, mix: WorkloadMix, seed: int) -> None:
        super().__init__(grid, mix, seed)
        self._kinds = Row(grid, self._present)

    def score(self, shape: Shape, nodes: Ints) -> Ints:
        """[n]: up to 100 with the same kind only, 75 with others as well, 50 on an empty node, 25 with others only."""
        if not shape.devices:
            return np.zeros(len(nodes), np.int64)
        present = self._kinds.at(nodes)
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
            for allocation in self.grid.allocated_on(int(number)):
                if allocation.shares:
                    whole = allocation.shares[0].whole
                    present[row, min(len(allocation.shares), KINDS - 1) if whole else 0] = True
        return present
