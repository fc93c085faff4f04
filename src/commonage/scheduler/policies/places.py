"""Places that typical workloads have left, and the price of taking one. For expected_waste.py.

A place of a workload is what it takes of one node: so many devices, and CPUs. A place is dear if the workload may run
out of places before the end: so workloads that can go elsewhere leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonage.domain.requests import GpuRequest, Request
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Floats, Ints, Shape

WHOLE_NODES = 0.1
"""The part of the demand that is expected for whole nodes, divided equally among the sizes of nodes. Workloads that need
all of a node are rare, and the places of a rare size would be taken before the first of them arrives.
"""
HORIZON = 4.0
"""The expected demand until the end, in idle capacities, exponential."""
RARE = 0.02
"""A place has no price if the workload runs out of places with less than this probability."""
_BLOCK = 512  # nodes at a time, so that the arrays stay small
_NONE = 1_000_000  # thousandths: more than any device has


def may_run_out(supply: Floats | Ints, demand: Floats) -> Floats:
    """The probability that the demand until the end exceeds the supply.

    `demand` is the mean until the idle capacity was requested once, in the unit of `supply`.
    """
    chance: Floats = np.exp(-supply / np.maximum(HORIZON * demand, 1e-9))
    return chance


def whole_nodes(grid: Grid) -> list[Shape]:
    """For each size of nodes with several devices, the workload that takes all devices and CPUs of such a node."""
    devices = (grid.kind >= 0).sum(axis=1)
    sizes = sorted({(int(count), int(cpus)) for count, cpus in zip(devices, grid.cpus_total, strict=True) if count > 1})
    return [grid.shape(Request(cpus, 0, GpuRequest(whole=count))) for count, cpus in sizes]


@dataclass(frozen=True, slots=True)
class Places:
    """For K workloads: the number of `devices` and the `cpus` of a place, and its `size` in thousandths of a device.

    `need` [kinds + 1, K]: the thousandths that a place takes of one device of each kind; the last row is for "no device".
    `demand` [K]: the part of all demand for GPUs.
    """

    devices: Ints
    cpus: Ints
    size: Ints
    need: Ints
    demand: Floats

    @classmethod
    def of(cls, asked: Sequence[Shape], taken: Floats, rates: Floats) -> Places:
        """`taken` [kinds, K]: the part of a device that each takes, above 1 if it never fits; `rates` [K]: frequency."""
        need = np.where(taken <= 1, np.maximum(np.ceil(taken * 1000 - 1e-6), 1), _NONE).astype(np.int64)
        devices = np.array([shape.devices for shape in asked], np.int64)
        size = devices * need.min(axis=0, initial=_NONE)
        demand = np.where(size < _NONE, size, 0) * rates
        return cls(
            devices,
            np.maximum([shape.cpus_milli for shape in asked], 1).astype(np.int64),
            size,
            np.vstack((need, np.full((1, len(devices)), _NONE))),
            demand / (demand.sum() or 1.0),
        )

    def only(self, which: Ints) -> Places:
        """Those of some workloads."""
        return Places(
            self.devices[which], self.cpus[which], self.size[which], self.need[:, which], self.demand[which]
        )

    def count(self, kind: Ints, idle: Ints, cpus: Floats) -> Ints:
        """[n, K]: the places of each on nodes with devices of these kinds [n, C] and idle thousandths [n, C].

        `cpus` [n]: thousandths of CPUs.
        """
        found: Ints = (np.maximum(cpus, 0.0)[:, None] // self.cpus).astype(np.int64)
        for start in range(0, len(found), _BLOCK):
            block = slice(start, start + _BLOCK)
            parts = (idle[block, :, None] // self.need[kind[block]]).sum(axis=1)
            np.minimum(found[block], parts // self.devices, out=found[block])
        return found

    def prices(self, supply: Ints, idle: float) -> Floats:
        """[K]: thousandths of a device for each place, if there are so many [K], and so many thousandths are idle."""
        chance = may_run_out(supply * self.size, idle * self.demand)
        price: Floats = np.where((chance >= RARE) & (supply > 0), chance * self.size, 0.0)
        return price
