"""The nodes on which each environment runs: near ties between nodes prefer them, because its image is there.

The snapshot counts allocations; the pass reads a row of all nodes at each start.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from commonage.domain.nodes import NodeKey
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, Bools

MAX_ROWS = 256  # cached rows


class Environments:
    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._counts: defaultdict[str, Counter[NodeKey]] = defaultdict(Counter)
        self._rows: dict[str, Bools] = {}
        self._epoch = grid.epoch

    def take(self, allocated: AllocatedRequest) -> None:
        self._count(allocated, 1)

    def give(self, allocated: AllocatedRequest) -> None:
        self._count(allocated, -1)

    def runs(self, environment: str) -> Bools:
        """[N], read-only: the nodes on which it runs."""
        if self._epoch != self._grid.epoch or len(self._rows) >= MAX_ROWS:
            self._rows, self._epoch = {}, self._grid.epoch
        row = self._rows.get(environment)
        if row is None:
            row = self._rows[environment] = np.zeros(len(self._grid.nodes), np.bool_)
            known = (self._grid.number.get(key, -1) for key in self._counts.get(environment, ()))
            row[[number for number in known if number >= 0]] = True
        return row

    def _count(self, allocated: AllocatedRequest, step: int) -> None:
        environment, key = allocated.environment, allocated.allocation.node_key
        counts = self._counts[environment]
        counts[key] += step
        row, number = self._rows.get(environment), self._grid.number.get(key, -1)
        if row is not None and 0 <= number < len(row):  # a row of an earlier epoch is not read again
            row[number] = counts[key] > 0
        if not counts[key]:
            del counts[key]
            if not counts:
                del self._counts[environment]
