"""What of a card is expected to be left for good, by how much of it is idle and how many cpus come with it.

Numbers alone: expected_waste makes the tables anew as the fleet fills, and looks into them. Idle shares are counted in
hundredths of a card here, waste in thousandths, cpus in thousandths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonage.placement.shapes import Floats, Ints

PARTS = 100
"""A card's idle share is told in so many parts."""
STEPS = 240
"""The cpus that come with a card are told in so many steps."""
FINE = 4
"""Into so many each step is divided for those who look something up."""
WIDTH = STEPS * FINE + 1
"""Columns of a table."""
END = 0.03
"""How often the end comes before the next typical workload: what is idle then stays idle. Large: waste counts soon."""
CHOICE = 1.0
"""How choosy the fleet is: a workload that wastes a card more than another does comes to it e to this less often."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Typical workloads as one kind of card sees them, [K] each: `parts` of a card that each takes (PARTS: all of it),
    of so many `cards`, with so many `cpus` for each card, and how often it comes to a card that it fits (`rate`).
    """

    parts: Ints
    cards: Ints
    cpus: Floats
    rate: Floats


def step_for(reach: float) -> float:
    """Thousandths of cpus in a step, so that the steps go as far as this: a number that divides whole cpus.

    Machines and workloads tend to have whole cpus, and to match exactly: 8 cpus for each card, 8 cpus asked for. With
    steps that miss these numbers some of what fits would seem not to.
    """
    wanted = max(reach / STEPS, 1.0)
    return float(
        next((step for step in (10, 20, 25, 50, 100, 125, 200, 250, 500) if step >= wanted), -(-wanted // 1000) * 1000)
    )


def table(demand: Demand, step: float, end: float, most: int) -> Floats:
    """[PARTS + 1 + most, WIDTH]: thousandths of a card that will be wasted.

    Row r < PARTS is a card of which r parts are idle; row PARTS + f one that is all idle, on a node with f such cards
    (f = 0: no such card, no waste). Columns go from no cpus up, FINE of them for a `step` of cpus. `end` is how often
    the end comes.

    A card's waste is the mean over what happens next: the end, or a typical workload that fits. One that fits leaves a
    smaller card behind, whose waste is known; one that takes several cards leaves nothing.
    """
    grid: Floats = np.arange(STEPS + 1, dtype=np.float64) * step
    needs, need_of = np.unique(np.minimum(demand.cpus, grid[-1]), return_inverse=True)
    shift = _Shift(grid, needs)
    alone = demand.cards == 1
    sizes, size_of = np.unique(demand.parts[alone], return_inverse=True)
    rate = np.zeros((len(sizes), len(needs)))
    np.add.at(rate, (size_of, need_of[alone]), demand.rate[alone])
    waste = np.zeros((PARTS + 1 + most, STEPS + 1))
    sums = np.zeros(
        (PARTS + 1, 2, STEPS + 1)
    )  # of each idle share: how often something comes, and times what it wastes
    for idle in range(PARTS):
        comes, left = sums[idle]
        waste[idle] = (end * idle * 1000 / PARTS + left) / (end + comes)
        fitting = sizes <= PARTS - idle
        then = rate[fitting] @ shift.of(waste[idle]).reshape(len(needs), 2 * (STEPS + 1))
        sums[idle + sizes[fitting]] += then.reshape(len(then), 2, STEPS + 1)
    comes, left = sums[PARTS]
    for whole in range(1, most + 1):
        several = (demand.cards > 1) & (demand.cards <= whole)
        taken = demand.rate[several] @ shift.fits[need_of[several]]
        waste[PARTS + whole] = (end * 1000 + left) / (end + comes + taken)
    return _finer(waste)


class _Shift:
    """Looks up waste where a workload has taken its cpus: between the columns, for all needs at once."""

    def __init__(self, grid: Floats, needs: Floats) -> None:
        at = (grid - needs[:, None]) / grid[1]
        self.fits = (at > -1e-9).astype(np.float64)
        at = np.maximum(at, 0.0)
        self._low = np.minimum(at.astype(np.int64), len(grid) - 2)
        self._part = at - self._low

    def of(self, waste: Floats) -> Floats:
        """[needs, 2, columns]: how often the workload is sent here where it fits, and that times the waste then."""
        then = waste[self._low] * (1 - self._part) + waste[self._low + 1] * self._part
        often = self.fits * np.exp(-CHOICE / 1000 * then)
        return np.stack((often, often * then), axis=1)


def _finer(waste: Floats) -> Floats:
    """The table with columns in between, so that the nearest will do."""
    low, step = np.divmod(np.arange(WIDTH), FINE)
    high = np.minimum(low + 1, STEPS)
    part = step / FINE
    fine: Floats = waste[:, low] * (1 - part) + waste[:, high] * part
    return fine
