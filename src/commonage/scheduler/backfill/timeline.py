"""Tracks the room that reservations keep on each node over time, and the room that time limits free by then.

Room only grows at ends and shrinks at beginnings, so a workload that fits when each reservation begins fits at all
times between. A window that has begun begins at -inf, before any end. Nodes without kept room cost nothing. Owned by
places.py; rows as in space.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.shapes import Floats, Ints
from commonage.scheduler.model.space import everywhere, free_rows, width

BEGUN = -np.inf
Window = tuple[float, float]


class _Line:
    """One node: at each of `starts` [M] the kept room minus the room freed by then, `short` [M, W]."""

    def __init__(self, windows: Floats, rows: Ints, ends: Floats, freed: Ints) -> None:
        self._begins, self._ends = _Sums(windows[:, 0], rows), _Sums(windows[:, 1], rows)
        self._freed = _Sums(ends, freed)
        self.starts: Floats = np.unique(windows[:, 0])
        load = self.load(self.starts)
        self.short: Ints = np.where(load > 0, load - self._freed.by(self.starts), 0)
        self.less: Ints = np.maximum.accumulate(np.maximum(0, self.short), axis=0)

    def load(self, instants: Floats) -> Ints:
        """[M, W]: the room kept then."""
        return self._begins.by(instants) - self._ends.by(instants)

    def spare(self, instants: Floats) -> Ints:
        """[M, W]: the room freed until then and not kept, to be added to the room that is free now."""
        return self._freed.by(instants) - self.load(instants)


class _Sums:
    """Rows by instant, with their running sums."""

    def __init__(self, at: Floats, rows: Ints) -> None:
        order = np.argsort(at, kind="stable")
        self._at = at[order]
        self._sums: Ints = np.zeros((len(at) + 1, rows.shape[1]), np.int64)
        np.cumsum(rows[order], axis=0, out=self._sums[1:])

    def by(self, instants: Floats) -> Ints:
        """[M, W]: the sum of all rows up to and including each instant."""
        sums: Ints = self._sums[np.searchsorted(self._at, instants, side="right")]
        return sums


class Timeline:
    """All nodes. Call `moved` for every node on which something started or ended."""

    def __init__(self, allocations: AllocationTable) -> None:
        self.grid, self._allocations = allocations.grid, allocations
        self._reserved: dict[int, dict[str, tuple[Window, Ints]]] = {}
        self._lines: dict[int, _Line] = {}
        self._freed: dict[float, Ints] = {}

    @property
    def nodes(self) -> list[int]:
        """The nodes with kept room at any time."""
        return list(self._reserved)

    def windows(self) -> Iterator[tuple[int, str, Window, Ints]]:
        """Node, reservation, window, and kept row [W]."""
        return (
            (number, who, window, row) for number, here in self._reserved.items() for who, (window, row) in here.items()
        )

    def keep(self, number: int, who: str, window: Window, row: Ints) -> None:
        """Keep more of a node (or less, for a negative `row`) for a reservation in a window."""
        here = self._reserved.setdefault(number, {})
        _, before = here.get(who, (window, np.zeros_like(row)))
        here[who] = (window, before + row)
        if not here[who][1].any():
            del here[who]
            if not here:
                del self._reserved[number]
        self._lines.pop(number, None)

    def begin(self, number: int, who: str) -> None:
        """The window of a reservation with room on this node has begun."""
        (_, until), row = self._reserved[number][who]
        self._reserved[number][who] = ((BEGUN, until), row)
        self._lines.pop(number, None)

    def moved(self, number: int) -> bool:
        """Update a node after a start or end; returns True if room is kept there."""
        self._lines.pop(number, None)
        self._freed.clear()
        return number in self._reserved

    def _line(self, number: int) -> _Line:
        line = self._lines.get(number)
        if line is None:
            self._allocations.sync()
            windows = np.array([window for window, _ in self._reserved[number].values()])
            slots = np.flatnonzero(self._allocations.node == number)
            line = self._lines[number] = _Line(
                windows,
                np.array([row for _, row in self._reserved[number].values()]),
                self._allocations.ends_at[slots],
                self._allocations.rows[slots],
            )
        return line

    # --- answers ------------------------------------------------------------------------------------------------------

    def less(self, number: int, until: float, without: str | None = None) -> Ints:
        """[W]: the part of a node's free room that is not available to a workload that stays beyond `until`, an instant
        at which a window begins; as seen by the reservation `without`.
        """
        here = self._reserved.get(number, {})
        if without in here:
            others = {who: kept for who, kept in here.items() if who != without}
            line = self._without(number, others) if others else None
        else:
            line = self._line(number) if here else None
        count = 0 if line is None else int(np.searchsorted(line.starts, until, side="right"))
        return np.zeros(width(self.grid), np.int64) if line is None or not count else line.less[count - 1]

    def _without(self, number: int, others: dict[str, tuple[Window, Ints]]) -> _Line:
        slots = np.flatnonzero(self._allocations.node == number)
        return _Line(
            np.array([window for window, _ in others.values()]),
            np.array([row for _, row in others.values()]),
            self._allocations.ends_at[slots],
            self._allocations.rows[slots],
        )

    def most(self, number: int) -> Ints:
        """[W]: the sum of all room kept on a node, even in windows that do not overlap."""
        return np.asarray(sum(row for _, row in self._reserved[number].values()), np.int64)

    def is_short(self, number: int) -> bool:
        """True if kept room on a node will not be available when its window begins."""
        if number not in self._reserved:
            return False
        line = self._line(number)
        return bool(((line.short > 0) & (line.short > free_rows(self.grid, np.array([number])))).any())

    def room_on(self, number: int, window: Window) -> Ints:
        """[W]: the room of a node that is free and not kept at all times of a window."""
        free = free_rows(self.grid, np.array([number]))[0]
        if number not in self._reserved:
            return np.asarray(free + self._freed_by(window[0])[number], np.int64)
        line = self._line(number)
        during = line.starts[(line.starts > window[0]) & (line.starts < window[1])]
        return np.asarray(free + line.spare(np.concatenate(([window[0]], during))).min(axis=0), np.int64)

    def room(self, window: Window) -> Ints:
        """[N, W]: the same for all nodes."""
        rows = free_rows(self.grid, everywhere(self.grid)) + self._freed_by(window[0])
        for number in self._reserved:
            rows[number] = self.room_on(number, window)
        return rows

    def _freed_by(self, at: float) -> Ints:
        """[N, W]: the room freed by then, cached until something starts or ends."""
        ends = self._allocations.ends_at
        last = float(ends[np.isfinite(ends)].max(initial=BEGUN))
        at = min(at, last)
        if at not in self._freed:
            if len(self._freed) >= 16:
                self._freed.clear()
            self._freed[at] = self._allocations.ended_by(at)
        return self._freed[at]
