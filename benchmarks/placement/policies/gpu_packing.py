"""`gpu-packing`: on GPUs in use first, then on free GPUs of nodes in use, then on free nodes.

The rule and its numbers are those compared in "Beware of Fragmentation" (USENIX ATC 2023). A request without a GPU goes
to the first node on which it fits.
"""

from __future__ import annotations

import numpy as np

from commonage.scheduler.model.shapes import Ints, Shape
from commonage.scheduler.policies.scored import Scored

FREE = 1000
"""Thousandths of an unused GPU."""


class GpuPacking(Scored):
    """Avoids opening unused GPUs and nodes."""

    def score(self, shape: Shape, nodes: Ints) -> Ints:
        """[n]: 50 to 100 on GPUs in use, 33 to 50 with unused GPUs of a node in use, up to 33 on an unused node; lower
        the more is free.
        """
        if not shape.devices:
            return np.zeros(len(nodes), np.int64)
        grid = self.grid
        there = grid.kind[nodes] >= 0
        free_devices = (there & (grid.free_milli[nodes] == FREE)).sum(axis=1)
        # Of the fitting GPUs, those with least free are taken; the others count as more than empty.
        left = np.sort(np.where(grid.devices_fit(shape, nodes), grid.free_milli[nodes], FREE + 1), axis=1)
        taken = left[:, : shape.devices]
        opened = (taken == FREE).sum(axis=1)
        on_used = np.maximum(100 - (taken * 100 // FREE).sum(axis=1) // 10, 50)
        on_new_devices = np.maximum(50 - opened, 33)
        on_new_node = np.maximum(33 - free_devices, free_devices)
        score: Ints = np.select(
            [free_devices == there.sum(axis=1), opened > 0], [on_new_node, on_new_devices], default=on_used
        )
        return score
