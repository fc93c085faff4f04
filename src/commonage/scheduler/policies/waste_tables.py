"""Tables of the expected waste of a device, by its idle share and the CPUs available with it. For expected_waste.py.

Here idle shares are in hundredths of a device, waste in thousandths, CPUs in thousandths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonage.scheduler.model.shapes import Floats, Ints

PARTS = 100  # the number of parts in which a device's idle share is counted
STEPS = 240  # the number of steps in which the CPUs of a device are counted
FINE = 4  # the number of columns for each step, for a finer lookup
WIDTH = STEPS * FINE + 1  # columns of a table
END = 0.03
"""The probability that the end comes before the next typical workload: idle capacity is then wasted. Large: waste
counts soon.
"""
CHOICE = 1.0  # selectivity: a workload that wastes one device more than another is e to this times less frequent on it


@dataclass(frozen=True, slots=True)
class Demand:
    """Typical workloads for one kind of device, [K] each: `parts` of a device that each takes (PARTS: all of it), the
    number of `devices`, the `cpus` for each device, and its frequency on a device that it fits (`rate`).
    """

    parts: Ints
    devices: Ints
    cpus: Floats
    rate: Floats


def step_for(reach: float) -> float:
    """Thousandths of a CPU in a step, so that the steps extend to `reach`: a number that divides whole CPUs.

    Nodes and workloads tend to have whole CPUs, and to match exactly: 8 CPUs for each device, 8 CPUs requested. Steps
    that miss these numbers would make some fitting requests appear not to fit.
    """
    wanted = max(reach / STEPS, 1.0)
    return float(
        next((step for step in (10, 20, 25, 50, 100, 125, 200, 250, 500) if step >= wanted), -(-wanted // 1000) * 1000)
    )


def table(demand: Demand, step: float, end: float, most: int) -> Floats:
    """[PARTS + 1 + most, WIDTH]: thousandths of a device that will be wasted.

    Row r < PARTS is a device with r idle parts; row PARTS + f is a wholly idle one, on a node with f such devices (f =
    0: no such device, no waste). Columns go from no CPUs up, FINE of them for a `step` of CPUs. `end` is the frequency
    of the end.

    The waste of a device is the mean over the next events: the end, or a typical workload that fits. A workload that
    fits leaves a smaller remainder, whose waste is known; one that takes several devices leaves nothing.
    """
    grid: Floats = np.arange(STEPS + 1, dtype=np.float64) * step
    needs, need_of = np.unique(np.minimum(demand.cpus, grid[-1]), return_inverse=True)
    shift = _Shift(grid, needs)
    alone = demand.devices == 1
    sizes, size_of = np.unique(demand.parts[alone], return_inverse=True)
    rate = np.zeros((len(sizes), len(needs)))
    np.add.at(rate, (size_of, need_of[alone]), demand.rate[alone])
    waste = np.zeros((PARTS + 1 + most, STEPS + 1))
    # For each idle share: the frequency of fitting workloads, and the frequency times the waste that they leave.
    sums = np.zeros((PARTS + 1, 2, STEPS + 1))
    for idle in range(PARTS):
        comes, left = sums[idle]
        waste[idle] = (end * idle * 1000 / PARTS + left) / (end + comes)
        fitting = sizes <= PARTS - idle
        then = rate[fitting] @ shift.of(waste[idle]).reshape(len(needs), 2 * (STEPS + 1))
        sums[idle + sizes[fitting]] += then.reshape(len(then), 2, STEPS + 1)
    comes, left = sums[PARTS]
    for whole in range(1, most + 1):
        several = (demand.devices > 1) & (demand.devices <= whole)
        taken = demand.rate[several] @ shift.fits[need_of[several]]
        waste[PARTS + whole] = (end * 1000 + left) / (end + comes + taken)
    return _finer(waste)


class _Shift:
    """Looks up the waste after a workload has taken its CPUs: between the columns, for all needs at once."""

    def __init__(self, grid: Floats, needs: Floats) -> None:
        at = (grid - needs[:, None]) / grid[1]
        self.fits = (at > -1e-9).astype(np.float64)
        at = np.maximum(at, 0.0)
        self._low = np.minimum(at.astype(np.int64), len(grid) - 2)
        self._part = at - self._low

    def of(self, waste: Floats) -> Floats:
        """[needs, 2, columns]: the frequency of the workload on a device that it fits, and that times the waste."""
        then = waste[self._low] * (1 - self._part) + waste[self._low + 1] * self._part
        often = self.fits * np.exp(-CHOICE / 1000 * then)
        return np.stack((often, often * then), axis=1)


def _finer(waste: Floats) -> Floats:
    """The table with interpolated columns, so that the nearest column is accurate enough."""
    low, step = np.divmod(np.arange(WIDTH), FINE)
    high = np.minimum(low + 1, STEPS)
    part = step / FINE
    fine: Floats = waste[:, low] * (1 - part) + waste[:, high] * part
    return fine
