"""Places that typical workloads have left, and the price of taking one. For expected_waste.py.

A place of a workload is what it takes of one node: a number of devices, and CPUs. A place is dear if the workload may
run out of places before the end: so workloads that can go elsewhere leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonage.domain.requests import GpuRequest, Request
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Floats, Ints, Shape

RARE = 0.3
"""The part of the demand that is expected for rare workloads, divided equally among them: one for each size of nodes
with several devices takes such a node whole, and one for each model a device of it. The places of a rare node or model
would be taken before the first workload that needs them arrives.
"""
HORIZON = 4.0
"""The expected demand until the end, in idle capacities, exponential. Lower, workloads with eight devices wait where
others depart; higher, devices stay idle under overload.
"""
UNLIKELY = 0.02
"""A place has no price if its workload runs out of places with less than this probability."""
_BLOCK = 512  # nodes at a time, so that the arrays stay small
_NONE = 1_000_000  # thousandths: more than any device has


def may_run_out(supply: Floats, demand: Floats) -> Floats:
    """The probability that the demand until the end, exponential with this mean, exceeds the supply."""
    chance: Floats = np.exp(-supply / np.maximum(demand, 1e-9))
    return chance


def rare_shapes(grid: Grid, cpus: Floats) -> list[Shape]:
    """Rare workloads: see RARE. `cpus` [N]: those that each node has for its devices when nothing runs.

    CPUs are rounded down to an eighth of a power of two, so that nodes of about one size count as one. The workload for
    a device of a model takes a single CPU.
    """
    devices = (grid.kind >= 0).sum(axis=1)
    sizes = {(int(count), _rounded(int(most))) for count, most in zip(devices, cpus, strict=True) if count > 1}
    models = {device.model for device, _ in grid.kinds}
    whole = [Request(cpus, 0, GpuRequest(whole=count)) for count, cpus in sorted(sizes)]
    single = [Request(1000, 0, GpuRequest(whole=1, model=model)) for model in sorted(models)]
    return [grid.shape(request) for request in (*whole, *single)]


def _rounded(cpus: int) -> int:
    step = 1 << max(cpus.bit_length() - 4, 0)
    return max(cpus // step * step, 1)


@dataclass(frozen=True, slots=True)
class Places:
    """For K workloads: the number of `devices` and the `cpus` of a place, and its `size` in thousandths of a device.

    `need` [kinds + 1, K]: the thousandths that a place takes of one device of each kind; the last row: of no device.
    `demand` [K]: the part of all demand for GPUs.
    """

    devices: Ints
    cpus: Ints
    size: Ints
    need: Ints
    demand: Floats

    @classmethod
    def of(cls, asked: Sequence[Shape], taken: Floats, rates: Floats) -> Places:
        """`taken` [kinds, K]: the part of a device that each takes, above 1 if it never fits. `rates`: [K]."""
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
        return Places(self.devices[which], self.cpus[which], self.size[which], self.need[:, which], self.demand[which])

    def count(self, kind: Ints, idle: Ints, cpus: Floats) -> Ints:
        """[n, K]: the places of each on nodes with devices of these kinds [n, C] and idle thousandths [n, C].

        `cpus` [n]: thousandths of CPUs.
        """
        found = np.maximum(cpus, 0.0)[:, None] / self.cpus
        # Thousandths of devices are exact in 32 bits, and so are their quotients, rounded down. Integers divide slower.
        idle, need = idle.astype(np.float32), self.need.astype(np.float32)
        for start in range(0, len(found), _BLOCK):
            block = slice(start, start + _BLOCK)
            parts = np.floor(idle[block, :, None] / need[kind[block]]).sum(axis=1)
            np.minimum(found[block], parts / self.devices, out=found[block])
        return np.floor(found, out=found).astype(np.int64)

    def prices(self, supply: Ints, idle: float) -> Floats:
        """[K]: thousandths of a device for each place, if there are so many [K], and so many thousandths are idle."""
        chance = may_run_out((supply * self.size).astype(np.float64), HORIZON * idle * self.demand)
        price: Floats = np.where((chance >= UNLIKELY) & (supply > 0), chance * self.size, 0.0)
        return price
