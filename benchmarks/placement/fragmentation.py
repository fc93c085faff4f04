"""Idle GPU capacity that typical workloads cannot use, as measured in "Beware of Fragmentation".

Called by the policy `fgd` and the inflation experiment.
"""

from __future__ import annotations

import numpy as np

from commonage.scheduler.model.grid import Grid, Row
from commonage.scheduler.model.shapes import NEVER, Bools, Floats, Ints
from commonage.scheduler.policies.mix import WorkloadMix


class Fragmentation:
    """Idle thousandths of GPUs of each node that the mix cannot use, weighted by the mix.

    A typical workload can use all GPUs that have enough VRAM and compute for it; none if it does not fit on the node,
    or takes no GPU. Memory is not considered.
    """

    def __init__(self, grid: Grid, mix: WorkloadMix) -> None:
        self._grid = grid
        self._requests = mix.requests
        self.weights: Floats = np.array(mix.weights, np.float64)
        self._row = Row(grid, self.of)
        self._epoch = -1
        self._tables()

    def by_node(self) -> Floats:
        """[N], read-only: fragmentation in thousandths of GPUs, valid until the grid changes."""
        return self._row.of()

    def of(self, nodes: Ints) -> Floats:
        """[len(nodes)]: the fragmentation of these nodes, computed now."""
        grid = self._grid
        return self.left(nodes, grid.cpus[nodes], grid.free_mib[nodes], grid.free_milli[nodes])

    def left(self, nodes: Ints, cpus: Ints, free_mib: Ints, free_milli: Ints) -> Floats:
        """[n]: the fragmentation of nodes with this free: cpus [n], VRAM and compute of GPUs [n, C]."""
        useful = self.useful(nodes, free_mib, free_milli)
        idle = np.where(self._grid.kind[nodes] >= 0, free_milli, 0)
        used = np.where(useful, idle[:, :, None], 0).sum(axis=1)
        fits = self.fits(cpus, useful.sum(axis=1))
        lost: Floats = (idle.sum(axis=1)[:, None] - np.where(fits, used, 0)) @ self.weights
        return lost

    def useful(self, nodes: Ints, free_mib: Ints, free_milli: Ints) -> Bools:
        """[n, C, T]: which GPUs, with this free [n, C], are enough for each typical workload."""
        self._tables()
        kind = self._grid.kind[nodes]
        enough: Bools = free_milli[:, :, None] >= self._need_milli[kind]
        enough &= free_mib[:, :, None] >= self._need_mib[kind]
        return enough

    def fits(self, cpus: Ints, devices: Ints) -> Bools:
        """[n, ..., T]: which typical workloads fit with this number of cpus [n] and useful GPUs [n, ..., T]."""
        wide = cpus.reshape(-1, *(1,) * (devices.ndim - 1))
        fit: Bools = (devices >= self._devices) & (wide >= self._cpus)
        return fit

    def _tables(self) -> None:
        """Update what typical workloads take of the current kinds of GPUs."""
        if self._epoch == self._grid.epoch:
            return
        self._epoch = self._grid.epoch
        shapes = [self._grid.shape(request) for request in self._requests]
        kinds = len(self._grid.kinds) + 1
        self._need_mib = np.array([shape.need_mib for shape in shapes], np.int64).reshape(-1, kinds).T.copy()
        self._need_milli = np.array([shape.need_milli for shape in shapes], np.int64).reshape(-1, kinds).T.copy()
        self._devices = np.array([shape.devices or NEVER for shape in shapes], np.int64)
        self._cpus = np.array([shape.cpus_milli for shape in shapes], np.int64)
