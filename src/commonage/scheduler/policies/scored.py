"""Policies that score each node independently of the others, their base, and the choice of devices on a node.

A subclass of `Scored` implements `score`, and `devices` if the tightest device is not right. Not for policies that
compare nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from commonage.scheduler.model.grid import Grid, Rows
from commonage.scheduler.model.shapes import NEVER, Bools, Floats, Ints, Shape
from commonage.scheduler.policies.mix import WorkloadMix


def first_fitting(grid: Grid, shape: Shape, node: int) -> Sequence[int]:
    """The first devices with the resources that the shape takes, on one NUMA node if it wants that."""
    fitting = _fitting(grid, shape, node)
    if shape.request.one_numa and shape.devices > 1:
        places = grid.numa[node, fitting]
        together = [fitting[places == place] for place in np.unique(places)]
        fitting = next(devices for devices in together if len(devices) >= shape.devices)
    return [int(device) for device in fitting[: shape.devices]]


def tightest(grid: Grid, shape: Shape, node: int) -> Sequence[int]:
    """For a part of a device, the fitting one with the least left; for whole devices the first ones."""
    if not shape.is_part:
        return first_fitting(grid, shape, node)
    fitting = _fitting(grid, shape, node)
    return [int(fitting[np.argmin(grid.free_milli[node, fitting])])]


def emptiest(grid: Grid, shape: Shape, node: int) -> Sequence[int]:
    """For a part of a device, the one with the most left; for whole devices the first ones."""
    if not shape.is_part:
        return first_fitting(grid, shape, node)
    fitting = _fitting(grid, shape, node)
    return [int(fitting[np.argmax(grid.free_milli[node, fitting])])]


def _fitting(grid: Grid, shape: Shape, node: int) -> Ints:
    if not shape.devices:
        return np.empty(0, np.int64)
    return np.flatnonzero(grid.devices_fit(shape, np.array([node]))[0])


def idle_milli(grid: Grid, nodes: Ints) -> Ints:
    """[len(nodes)]: thousandths of GPUs that are free on each node, over all schedulable devices."""
    idle: Ints = np.where(grid.kind[nodes] >= 0, grid.free_milli[nodes], 0).sum(axis=1)
    return idle


def taken_milli(grid: Grid, shape: Shape, nodes: Ints) -> Ints:
    """[len(nodes)]: thousandths of GPUs that the shape takes there, on the devices that need least; 0 if none fits."""
    if not shape.devices:
        return np.zeros(len(nodes), np.int64)
    need = shape.need_milli[grid.kind[nodes]].min(axis=1, initial=NEVER)
    taken: Ints = np.where(need < NEVER, need * shape.devices, 0)
    return taken


def largest(grid: Grid) -> tuple[int, int]:
    """The most CPUs of any node (thousandths), and the most GPUs of any node (thousandths)."""
    cpus = int(grid.cpus_total.max(initial=1))
    return max(cpus, 1), 1000 * max(grid.kind.shape[1], 1)


class Scored(ABC):
    """A policy over one grid that neither learns nor decides randomly."""

    def __init__(self, grid: Grid, mix: WorkloadMix, seed: int) -> None:
        self.grid = grid
        self._costs = Rows(grid, self._cost)

    @abstractmethod
    def score(self, shape: Shape, nodes: Ints) -> Floats | Ints:
        """[len(nodes)]: the score of each node for the shape, higher is better; meaningless where it does not fit."""

    def arrived(self, shape: Shape) -> None:  # noqa: B027  optional hook
        ...

    def costs(self, shape: Shape, among: Bools | None = None) -> Floats:
        """[N]: the score, negative; inf where the shape does not fit."""
        return self._costs.of(shape, among)

    def devices(self, shape: Shape, node: int) -> Sequence[int]:
        return tightest(self.grid, shape, node)

    def _cost(self, shape: Shape, nodes: Ints) -> Floats:
        return np.where(self.grid.fits(shape, nodes), -1.0 * self.score(shape, nodes), np.inf)


class BestFit(Scored):
    def score(self, shape: Shape, nodes: Ints) -> Floats:
        """[n]: 100 minus the remaining resources, in whole per cent of the largest node."""
        max_cpus, max_milli = largest(self.grid)
        cpus = (self.grid.cpus[nodes] - shape.cpus_milli) / max_cpus
        milli = (idle_milli(self.grid, nodes) - taken_milli(self.grid, shape, nodes)) / max_milli
        return np.floor((1.0 - (0.5 * cpus + 0.5 * milli)) * 100)


class Spread(Scored):
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
        return emptiest(self.grid, shape, node)
