"""`fgd`: fragmentation gradient descent, the node on which placing adds least fragmentation.

As published in "Beware of Fragmentation" (USENIX ATC 2023): the score is 100 times the sigmoid of the fall of the
node's fragmentation in GPUs, as a whole number. The coarse score is part of the policy: near ties go to the first node,
which keeps workloads together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.placement.fragmentation import Fragmentation
from commonage.scheduler.model.grid import Grid, Rows
from commonage.scheduler.model.shapes import Bools, Floats, Ints, Shape
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.scored import first_fitting


class Fgd:
    """The policy over one grid. It does not learn: the mix is fixed."""

    def __init__(self, grid: Grid, mix: WorkloadMix, seed: int) -> None:
        self._grid = grid
        self._fragmentation = Fragmentation(grid, mix)
        self._rows = Rows(grid, self._compute)

    def arrived(self, shape: Shape) -> None:
        """Nothing to learn."""

    def costs(self, shape: Shape, among: Bools | None = None) -> Floats:
        """[N]: -100 to 0."""
        costs: Floats = self._rows.of(shape, among)[:, 0]
        return costs

    def devices(self, shape: Shape, node: int) -> Sequence[int]:
        """The GPU that adds least fragmentation, or the first whole ones."""
        if shape.is_part:
            return [int(self._rows.at(shape, np.array([node]))[0, 1])]
        return first_fitting(self._grid, shape, node)

    def _compute(self, shape: Shape, nodes: Ints) -> Floats:
        """[n, 2]: the cost, and for a part of a GPU the best GPU."""
        grid = self._grid
        result = np.zeros((len(nodes), 2))
        result[:, 0] = np.inf
        fits = grid.fits(shape, nodes)
        where = nodes[fits]
        if len(where):
            after = self._after_part(shape, where) if shape.is_part else self._after_whole(shape, where)
            falls = self._fragmentation.by_node()[where, None] - after
            scores = np.where(np.isinf(after), -1, np.floor(100 / (1 + np.exp(-falls / 1000))))
            best = scores.argmax(axis=1)
            result[fits, 0] = -scores[np.arange(len(where)), best]
            result[fits, 1] = best
        return result

    def _after_whole(self, shape: Shape, nodes: Ints) -> Floats:
        """[n, 1]: the fragmentation of the nodes after taking whole GPUs, or none."""
        grid = self._grid
        free_mib, free_milli, kind = grid.free_mib[nodes], grid.free_milli[nodes], grid.kind[nodes]
        if shape.devices:
            fitting = grid.devices_fit(shape, nodes)
            taken = fitting & (fitting.cumsum(axis=1) <= shape.devices)
            free_mib -= np.where(taken, shape.need_mib[kind], 0)
            free_milli -= np.where(taken, shape.need_milli[kind], 0)
        left = self._fragmentation.left(nodes, grid.cpus[nodes] - shape.cpus_milli, free_mib, free_milli)
        return left[:, None]

    def _after_part(self, shape: Shape, nodes: Ints) -> Floats:
        """[n, C]: the fragmentation of the nodes after taking a part of each GPU in turn; inf if it does not fit."""
        grid, measure = self._grid, self._fragmentation
        free_mib, free_milli, kind = grid.free_mib[nodes], grid.free_milli[nodes], grid.kind[nodes]
        fitting = grid.devices_fit(shape, nodes)
        need_mib, need_milli = (np.where(fitting, need[kind], 0) for need in (shape.need_mib, shape.need_milli))
        before = measure.useful(nodes, free_mib, free_milli)
        after = measure.useful(nodes, free_mib - need_mib, free_milli - need_milli)
        idle = np.where(kind >= 0, free_milli, 0)
        # Only the GPU itself changes: take its old part out of the sums over the node, and put its new one in.
        used = np.where(before, idle[:, :, None], 0)
        used = used.sum(axis=1)[:, None, :] - used + np.where(after, (idle - need_milli)[:, :, None], 0)
        devices = before.sum(axis=1)[:, None, :] - before.astype(np.int64) + after
        fits = measure.fits(grid.cpus[nodes] - shape.cpus_milli, devices)
        left = idle.sum(axis=1)[:, None] - need_milli
        lost: Floats = (left[:, :, None] - np.where(fits, used, 0)) @ measure.weights
        return np.where(fitting, lost, np.inf)
