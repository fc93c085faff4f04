"""The future capacity of nodes: what time limits will free on each, and the claims on that.

The snapshot keeps the availability profiles in step with the grid and the allocations. backfill.py makes the claims in
each pass: of promised starts and of reservations, each with a time window. A claim on capacity that is free later does
not block workloads that end before it begins. Rows are those of model/space.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonage.domain.nodes import Allocation
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid, Row, Rows
from commonage.scheduler.model.shapes import NEVER, Floats, Ints, Shape
from commonage.scheduler.model.space import fits_in, free_rows, row_of

Path = tuple[Floats, Ints]
"""([L + 1], [L + 1, W]): times at which something ends (the first is -inf), and the free row from each on."""


class AvailabilityProfiles:
    """The profile of each node, cached until the node changes."""

    def __init__(self, grid: Grid, allocations: AllocationTable) -> None:
        self._grid, self._allocations = grid, allocations
        self._paths: dict[int, Path] = {}
        self._epoch, self._at = -1, 0
        self._first = Row(grid, self._first_of)
        self._earliest = Rows(grid, self._earliest_of)

    def path(self, number: int) -> Path:
        """The future free rows of a node; an allocation without a time limit never ends."""
        self._refresh()
        path = self._paths.get(number)
        if path is None:
            path = self._paths[number] = self._build(number)
        return path

    def first_ends(self) -> Floats:
        """[N], read-only: when a time limit first ends an allocation on each node; inf if none does."""
        ends: Floats = self._first.of()
        return ends

    def earliest(self, shape: Shape) -> Floats:
        """[N]: when the shape fits without eviction: -inf if it fits now, inf if unknown."""
        instants: Floats = self._earliest.of(shape)
        return instants

    def free_at(self, number: int, at: float) -> Ints:
        times, rows = self.path(number)
        row: Ints = rows[int(np.searchsorted(times, at, side="right")) - 1]
        return row

    def _refresh(self) -> None:
        grid = self._grid
        if self._epoch != grid.epoch:
            self._allocations.sync()
            self._paths.clear()
            self._epoch = grid.epoch
        elif self._at != grid.changes:
            for number in grid.changed_since(self._at).tolist():
                self._paths.pop(number, None)
        self._at = grid.changes

    def _build(self, number: int) -> Path:
        slots = [self._allocations.slot[allocation.attempt_id] for allocation in self._grid.allocated_on(number)]
        free = free_rows(self._grid, np.array([number]))
        ends = self._allocations.ends_at[slots]
        order = np.argsort(ends)[: np.count_nonzero(np.isfinite(ends))]
        times = np.concatenate(([-np.inf], ends[order]))
        return times, np.cumsum(np.concatenate((free, self._allocations.rows[slots][order])), axis=0)

    def _first_of(self, nodes: Ints) -> Floats:
        self._refresh()
        slot, ends = self._allocations.slot, self._allocations.ends_at
        allocated = (self._grid.allocated_on(number) for number in nodes.tolist())
        return np.array(
            [min((ends[slot[one.attempt_id]] for one in on), default=np.inf) for on in allocated], np.float64
        )

    def _earliest_of(self, shape: Shape, nodes: Ints) -> Floats:
        earliest = np.full(len(nodes), np.inf)
        some = np.flatnonzero(self._grid.fits_empty(shape, nodes))
        if not len(some):
            return earliest
        paths = [self.path(number) for number in nodes[some].tolist()]
        lengths = np.array([len(times) for times, _ in paths])
        fit = fits_in(self._grid, shape, np.repeat(nodes[some], lengths), np.concatenate([rows for _, rows in paths]))
        times = np.where(fit, np.concatenate([times for times, _ in paths]), np.inf)
        earliest[some] = np.minimum.reduceat(times, np.concatenate(([0], np.cumsum(lengths)[:-1])))
        return earliest


@dataclass(frozen=True, slots=True)
class CapacityClaim:
    """The window of a claim, and the id of its reservation; empty for a promise."""

    starts_at: float
    ends_at: float
    reservation: str = ""


class CapacityClaims:
    def __init__(self, grid: Grid, profiles: AvailabilityProfiles, now: float) -> None:
        self._grid, self._profiles, self.now = grid, profiles, now
        self._of: defaultdict[int, list[tuple[CapacityClaim, Ints]]] = defaultdict(list)
        self._head_spare: dict[int, Ints] = {}
        self._tables: defaultdict[int, dict[tuple[str, ...], tuple[Floats, Ints]]] = defaultdict(dict)
        self._rooms: defaultdict[int, dict[int, Ints]] = defaultdict(dict)

    @property
    def nodes(self) -> list[int]:
        """The numbers of the nodes with claims, or reserved for the head of the queue."""
        return [*self._of, *(number for number in self._head_spare if number not in self._of)]

    def add(self, number: int, row: Ints, claim: CapacityClaim) -> None:
        self._of[number].append((claim, row))
        self._forget(number)

    def promise(self, allocation: Allocation, starts_at: float, ends_at: float) -> None:
        number = self._grid.number.get(allocation.node_key)
        if number is not None:
            self.add(number, row_of(self._grid, allocation), CapacityClaim(starts_at, ends_at))

    def reserve_for_head(self, number: int, spare: Ints) -> None:
        """Reserve a node for the head of the queue: other requests may only use `spare` [W], even if they end soon."""
        self._head_spare[number] = spare
        self._forget(number)

    def is_reserved_for_head(self, number: int) -> bool:
        """Whether a node is reserved for a request whose start time is unknown."""
        return number in self._head_spare

    def started(self, allocation: Allocation) -> None:
        number = self._grid.number[allocation.node_key]
        if number in self._head_spare:
            self._head_spare[number] = self._head_spare[number] - row_of(self._grid, allocation)
        self._forget(number)

    def room(self, number: int, end: float) -> Ints:
        """[W]: the unclaimed room of a node from now until `until`, regardless of reservations."""
        least: Ints = free_rows(self._grid, np.array([number]))[0]
        for at in self._instants(number, self.now, end):
            least = np.minimum(least, self._left(number, at, None))
        if number in self._head_spare:
            least = np.minimum(least, self._head_spare[number])
        return least

    def rooms(self, nodes: Ints, end: float) -> Ints:
        """[n, W]: `room` of several nodes, cached until something starts there."""
        rows = []
        for number in nodes.tolist():
            begun = sum(claim.starts_at < end for claim, _ in self._of.get(number, ()))
            row = self._rooms[number].get(begun)
            if row is None:
                row = self._rooms[number][begun] = self.room(number, end)
            rows.append(row)
        return np.array(rows)

    def earliest(self, shape: Shape, number: int, length_s: float, exempt: Sequence[str]) -> float:
        """The earliest time at which a shape fits on a node for `length_s` next to all claims; inf if unknown."""
        instants, left = self._table(number, tuple(exempt))
        ends = np.searchsorted(instants, instants + length_s)
        spans = np.column_stack((np.arange(len(instants)), np.maximum(ends, np.arange(len(instants)) + 1))).ravel()
        least = np.minimum.reduceat(left, spans)[::2]
        fit = fits_in(self._grid, shape, np.full(len(instants), number), least)
        return float(instants[int(np.argmax(fit))]) if fit.any() else np.inf

    def latest(self, shape: Shape, number: int) -> float:
        """The latest end of a shape that starts now next to the promises; -inf: it cannot start."""
        nodes = np.array([number])
        for claim, _ in sorted(self._of.get(number, ()), key=lambda pair: pair[0].starts_at):
            if not fits_in(self._grid, shape, nodes, self.room(number, np.nextafter(claim.starts_at, np.inf))[None])[0]:
                return claim.starts_at if claim.starts_at > self.now else -np.inf
        return np.inf if fits_in(self._grid, shape, nodes, self.room(number, np.inf)[None])[0] else -np.inf

    def _table(self, number: int, exempt: tuple[str, ...]) -> tuple[Floats, Ints]:
        """([T], [T + 1, W]): times at which the room changes, and the room from each on; the last row is unlimited."""
        table = self._tables[number].get(exempt)
        if table is None:
            times, _ = self._profiles.path(number)
            known = {self.now, *np.maximum(times[1:], self.now).tolist()}
            for claim, _ in self._of.get(number, ()):
                known |= {at for at in (claim.starts_at, claim.ends_at) if self.now < at < np.inf}
            instants = sorted(known)
            rows = [self._left(number, at, exempt) for at in instants]
            left = np.array([*rows, np.full(len(rows[0]), NEVER)])
            if number in self._head_spare:
                left = np.minimum(left, self._head_spare[number])
            table = self._tables[number][exempt] = (np.array(instants), left)
        return table

    def _forget(self, number: int) -> None:
        self._tables.pop(number, None)
        self._rooms.pop(number, None)

    def between(self, number: int, start: float, end: float, exempt: Sequence[str]) -> Ints:
        """[W]: the room of a node that is free at `since` and unclaimed until `until`."""
        least = self._left(number, start, exempt)
        for at in self._instants(number, start, end):
            least = np.minimum(least, self._left(number, at, exempt))
        return np.minimum(least, self._head_spare[number]) if number in self._head_spare else least

    def _instants(self, number: int, start: float, end: float) -> list[float]:
        """The times in [since, until) at which claims on a node begin: only these reduce the room."""
        begins = (max(start, claim.starts_at) for claim, _ in self._of.get(number, ()) if claim.ends_at > start)
        return sorted({at for at in begins if at < end})

    def _left(self, number: int, at: float, exempt: Sequence[str] | None) -> Ints:
        """[W]: the free and unclaimed room at `at`, regardless of `exempt` reservations (None: of all)."""
        row = self._profiles.free_at(number, at)
        for claim, claimed in self._of.get(number, ()):
            counts = not claim.reservation or (exempt is not None and claim.reservation not in exempt)
            if counts and claim.starts_at <= at < claim.ends_at:
                row = row - claimed
        return row
