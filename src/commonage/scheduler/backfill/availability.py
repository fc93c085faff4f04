"""Availability profiles: the resources that time limits will free on each node, and when. For promises and backfill.

The snapshot keeps them in step with the grid and the allocations. Only allocations count here; claims.py adds promises
and reservations. Rows are those of model/space.py.
"""

from __future__ import annotations

import numpy as np

from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid, Row, Rows
from commonage.scheduler.model.shapes import Floats, Ints, Shape
from commonage.scheduler.model.space import fits_in, free_rows

Path = tuple[Floats, Ints]
"""([L + 1], [L + 1, W]): times at which something ends (the first is -inf), and the free row from each on."""


class AvailabilityProfiles:
    """The profile of each node, cached until the node changes."""

    def __init__(self, grid: Grid, allocations: AllocationTable) -> None:
        self._grid, self._allocations = grid, allocations
        self._paths: dict[int, Path] = {}
        self._epoch, self._at = -1, 0
        self._first = Row(grid)
        self._earliest = Rows(grid, self._earliest_of)

    def path(self, number: int) -> Path:
        """The future free rows of a node; an allocation without a time limit never ends."""
        self._refresh()
        found = self._paths.get(number)
        if found is None:
            found = self._paths[number] = self._build(number)
        return found

    def first_ends(self) -> Floats:
        """[N], read-only: when a time limit first ends an allocation on each node; inf if none does."""
        ends: Floats = self._first.of(self._first_of)
        return ends

    def earliest(self, shape: Shape) -> Floats:
        """[N]: when the shape fits without eviction: -inf if it fits now, inf if unknown."""
        found: Floats = self._earliest.of(shape)
        return found

    def free_at(self, number: int, at: float) -> Ints:
        """[W]: the free row of a node at `at`."""
        times, rows = self.path(number)
        row: Ints = rows[int(np.searchsorted(times, at, side="right")) - 1]
        return row

    def _refresh(self) -> None:
        grid = self._grid
        if self._epoch != grid.epoch:
            self._allocations.sync()
            self._paths.clear()
            self._epoch = grid.epoch
        elif self._at != len(grid.changed):
            for number in grid.changed[self._at :]:
                self._paths.pop(number, None)
        self._at = len(grid.changed)

    def _build(self, number: int) -> Path:
        slots = [self._allocations.slot[allocation.attempt_id] for allocation in self._grid.allocated_on(number)]
        free = free_rows(self._grid, np.array([number]))
        ends = self._allocations.ends_at[slots]
        order = np.argsort(ends)[: np.count_nonzero(np.isfinite(ends))]
        times = np.concatenate(([-np.inf], ends[order]))
        return times, np.cumsum(np.concatenate((free, self._allocations.rows[slots][order])), axis=0)

    def _first_of(self, nodes: Ints) -> Floats:
        paths = (self.path(number)[0] for number in nodes.tolist())
        return np.array([times[1] if len(times) > 1 else np.inf for times in paths], np.float64)

    def _earliest_of(self, shape: Shape, nodes: Ints) -> Floats:
        found = np.full(len(nodes), np.inf)
        some = np.flatnonzero(self._grid.fits_empty(shape, nodes))
        if not len(some):
            return found
        paths = [self.path(number) for number in nodes[some].tolist()]
        lengths = np.array([len(times) for times, _ in paths])
        fit = fits_in(self._grid, shape, np.repeat(nodes[some], lengths), np.concatenate([rows for _, rows in paths]))
        times = np.where(fit, np.concatenate([times for times, _ in paths]), np.inf)
        found[some] = np.minimum.reduceat(times, np.concatenate(([0], np.cumsum(lengths)[:-1])))
        return found
