"""`spread`: the emptiest node, so that workloads disturb each other as little as possible.

As kube-scheduler's LeastAllocated: the mean of the parts of CPUs, memory and GPUs that stay free on the node. For
clusters that are rarely full: it fragments more than any other policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonage.scheduler.model.shapes import Floats, Ints, Shape
from commonage.scheduler.policies.scored import Scored, emptiest, idle_milli, taken_milli


class Spread(Scored):
    """Prefers much left over."""

    def score(self, shape: Shape, nodes: Ints) -> Floats:
        """[n]: 0 to 3. A node without GPUs counts as one whose GPUs are all free: no GPU workload competes there."""
        grid = self.grid
        total = 1000 * (grid.kind[nodes] >= 0).sum(axis=1)
        left = idle_milli(grid, nodes) - taken_milli(grid, shape, nodes)
        gpus = np.where(total > 0, left / np.maximum(total, 1), 1.0)
        cpus = (grid.cpus[nodes] - shape.cpus_milli) / np.maximum(grid.cpus_total[nodes], 1)
        memory = (grid.memory[nodes] - shape.memory_mib) / np.maximum(grid.memory_total[nodes], 1)
        score: Floats = gpus + cpus + memory
        return score

    def devices(self, shape: Shape, node: int) -> Sequence[int]:
        """The emptiest device, or the first whole ones."""
        return emptiest(self.grid, shape, node)
