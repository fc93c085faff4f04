"""Tracks the capacity that reservations claim on each node over time, and the capacity that time limits free by then.

Room grows only at ends and shrinks only at beginnings. So a workload that fits when each reservation begins fits at all
times between. A window that has begun begins at -inf. Nodes without reserved capacity cost nothing. Owned by
reservation_places.py; rows as in model/space.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.shapes import Floats, Ints
from commonage.scheduler.model.space import everywhere, free_rows, width

BEGUN = -np.inf
Window = tuple[float, float]


class _NodeTimeline:
    """One node. At each of `starts` [M], `short` [M, W] is the reserved room minus the room freed by then."""

    def __init__(self, windows: Floats, rows: Ints, ends: Floats, freed: Ints) -> None:
        self._begins, self._ends = _RunningSums(windows[:, 0], rows), _RunningSums(windows[:, 1], rows)
        self._freed = _RunningSums(ends, freed)
        self.starts: Floats = np.unique(windows[:, 0])
        load = self.load(self.starts)
        self.short: Ints = np.where(load > 0, load - self._freed.by(self.starts), 0)
        self.unavailable: Ints = np.maximum.accumulate(np.maximum(0, self.short), axis=0)

    def load(self, instants: Floats) -> Ints:
        """[M, W]: the room reserved at these times."""
        return self._begins.by(instants) - self._ends.by(instants)

    def spare(self, instants: Floats) -> Ints:
        """[M, W]: the room freed by then minus the room reserved; add it to the room that is free now."""
        return self._freed.by(instants) - self.load(instants)


class _RunningSums:
    def __init__(self, at: Floats, rows: Ints) -> None:
        order = np.argsort(at, kind="stable")
        self._at = at[order]
        self._sums: Ints = np.zeros((len(at) + 1, rows.shape[1]), np.int64)
        np.cumsum(rows[order], axis=0, out=self._sums[1:])

    def by(self, instants: Floats) -> Ints:
        sums: Ints = self._sums[np.searchsorted(self._at, instants, side="right")]
        return sums


class Timeline:
    """All nodes. Call `node_changed` for every node on which something started or ended."""

    def __init__(self, allocations: AllocationTable) -> None:
        self.grid, self._allocations = allocations.grid, allocations
        self._reserved: dict[int, dict[str, tuple[Window, Ints]]] = {}
        self._lines: dict[int, _NodeTimeline] = {}
        self._freed: dict[float, Ints] = {}

    @property
    def nodes(self) -> list[int]:
        return list(self._reserved)

    def windows(self) -> Iterator[tuple[int, str, Window, Ints]]:
        return (
            (number, reservation_id, window, row)
            for number, here in self._reserved.items()
            for reservation_id, (window, row) in here.items()
        )

    def reserve(self, number: int, reservation_id: str, window: Window, row: Ints) -> None:
        """Reserve more of a node for a reservation; less for a negative `row`."""
        here = self._reserved.setdefault(number, {})
        _, before = here.get(reservation_id, (window, np.zeros_like(row)))
        here[reservation_id] = (window, before + row)
        if not here[reservation_id][1].any():
            del here[reservation_id]
            if not here:
                del self._reserved[number]
        self._lines.pop(number, None)

    def begin(self, number: int, reservation_id: str) -> None:
        (_, ends_at), row = self._reserved[number][reservation_id]
        self._reserved[number][reservation_id] = ((BEGUN, ends_at), row)
        self._lines.pop(number, None)

    def node_changed(self, number: int) -> bool:
        """Update a node after a start or end; returns whether room is reserved there."""
        self._lines.pop(number, None)
        self._freed.clear()
        return number in self._reserved

    def _line(self, number: int) -> _NodeTimeline:
        line = self._lines.get(number)
        if line is None:
            self._allocations.sync()
            line = self._lines[number] = self._make_line(number, self._reserved[number])
        return line

    def _make_line(self, number: int, reserved: dict[str, tuple[Window, Ints]]) -> _NodeTimeline:
        slots = np.flatnonzero(self._allocations.node == number)
        return _NodeTimeline(
            np.array([window for window, _ in reserved.values()]),
            np.array([row for _, row in reserved.values()]),
            self._allocations.ends_at[slots],
            self._allocations.rows[slots],
        )

    # --- answers ------------------------------------------------------------------------------------------------------

    def unavailable(self, number: int, instant: float, without: str | None = None) -> Ints:
        """[W]: the part of a node's free room that a workload may not use if it stays beyond `instant`, the begin of a
        window; as seen by the reservation `without`.
        """
        here = self._reserved.get(number, {})
        if without in here:
            others = {reservation_id: kept for reservation_id, kept in here.items() if reservation_id != without}
            line = self._make_line(number, others) if others else None
        else:
            line = self._line(number) if here else None
        count = 0 if line is None else int(np.searchsorted(line.starts, instant, side="right"))
        return np.zeros(width(self.grid), np.int64) if line is None or not count else line.unavailable[count - 1]

    def total(self, number: int) -> Ints:
        """[W]: the sum of all room reserved on a node, even in windows that do not overlap."""
        return np.asarray(sum(row for _, row in self._reserved[number].values()), np.int64)

    def is_short(self, number: int) -> bool:
        """Whether reserved room on a node will be missing when its window begins."""
        if number not in self._reserved:
            return False
        line = self._line(number)
        return bool(((line.short > 0) & (line.short > free_rows(self.grid, np.array([number])))).any())

    def room_on(self, number: int, window: Window) -> Ints:
        """[W]: the room of a node that is free and not reserved during a whole window."""
        free = free_rows(self.grid, np.array([number]))[0]
        if number not in self._reserved:
            return np.asarray(free + self._freed_by(window[0])[number], np.int64)
        line = self._line(number)
        during = line.starts[(line.starts > window[0]) & (line.starts < window[1])]
        return np.asarray(free + line.spare(np.concatenate(([window[0]], during))).min(axis=0), np.int64)

    def room(self, window: Window) -> Ints:
        """[N, W]: `room_on` of all nodes."""
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
