"""Room that is promised to workloads that wait: on which node, from when until when, and what is left beside it.

Made anew in each pass, by backfill.py. A claim on what will be free at an instant does not keep others from what they
will have given back by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonage.domain.fleet import Lease
from commonage.placement.ahead import Ahead
from commonage.placement.grid import Grid
from commonage.placement.shapes import NEVER, Floats, Ints, Shape
from commonage.placement.space import fits_in, free_rows, row_of


@dataclass(frozen=True, slots=True)
class Claim:
    """From when until when; `reservation` is that which keeps it, empty where a promise does."""

    from_at: float
    until_at: float
    reservation: str = ""


class Claims:
    """All claims of a pass by node; `nodes` are those that have any."""

    def __init__(self, grid: Grid, ahead: Ahead, now: float) -> None:
        self._grid, self._ahead, self.now = grid, ahead, now
        self._of: defaultdict[int, list[tuple[Claim, Ints]]] = defaultdict(list)
        self._spare: dict[int, Ints] = {}
        self._tables: defaultdict[int, dict[tuple[str, ...], tuple[Floats, Ints]]] = defaultdict(dict)
        self._rooms: defaultdict[int, dict[int, Ints]] = defaultdict(dict)

    @property
    def nodes(self) -> list[int]:
        """The numbers of the nodes of which something is claimed or kept."""
        return [*self._of, *(number for number in self._spare if number not in self._of)]

    def add(self, number: int, row: Ints, claim: Claim) -> None:
        """Claim `row` [W] of a node."""
        self._of[number].append((claim, row))
        self._forget(number)

    def promise(self, lease: Lease, from_at: float, until_at: float) -> None:
        """Claim what somebody is promised."""
        number = self._grid.number.get(lease.node)
        if number is not None:
            self.add(number, row_of(self._grid, lease), Claim(from_at, until_at))

    def keep(self, number: int, spare: Ints) -> None:
        """Let nothing start on a node but what fits into `spare` [W], however soon it ends."""
        self._spare[number] = spare
        self._forget(number)

    def kept(self, number: int) -> bool:
        """True if a node is kept for one of which nobody knows when it starts."""
        return number in self._spare

    def taken(self, lease: Lease) -> None:
        """Something was started."""
        number = self._grid.number[lease.node]
        if number in self._spare:
            self._spare[number] = self._spare[number] - row_of(self._grid, lease)
        self._forget(number)

    def room(self, number: int, until: float) -> Ints:
        """[W]: what of a node can be had from now until `until` beside what is promised, whatever is reserved."""
        least: Ints = free_rows(self._grid, np.array([number]))[0]
        for at in self._instants(number, self.now, until):
            least = np.minimum(least, self._left(number, at, None))
        if number in self._spare:
            least = np.minimum(least, self._spare[number])
        return least

    def rooms(self, nodes: Ints, until: float) -> Ints:
        """[n, W]: the same of several nodes, remembered while nothing starts there."""
        rows = []
        for number in nodes.tolist():
            begun = sum(claim.from_at < until for claim, _ in self._of.get(number, ()))
            row = self._rooms[number].get(begun)
            if row is None:
                row = self._rooms[number][begun] = self.room(number, until)
            rows.append(row)
        return np.array(rows)

    def earliest(self, shape: Shape, number: int, length_s: float, exempt: Sequence[str]) -> float:
        """When a shape fits on a node for so long beside all claims; inf: nobody knows."""
        instants, left = self._table(number, tuple(exempt))
        until = np.searchsorted(instants, instants + length_s)
        spans = np.column_stack((np.arange(len(instants)), np.maximum(until, np.arange(len(instants)) + 1))).ravel()
        least = np.minimum.reduceat(left, spans)[::2]
        fit = fits_in(self._grid, shape, np.full(len(instants), number), least)
        return float(instants[int(np.argmax(fit))]) if fit.any() else np.inf

    def latest(self, shape: Shape, number: int) -> float:
        """Until when at the latest a shape that fits now may stay beside what is promised; -inf: not at all."""
        nodes = np.array([number])
        for claim, _ in sorted(self._of.get(number, ()), key=lambda one: one[0].from_at):
            if not fits_in(self._grid, shape, nodes, self.room(number, np.nextafter(claim.from_at, np.inf))[None])[0]:
                return claim.from_at if claim.from_at > self.now else -np.inf
        return np.inf if fits_in(self._grid, shape, nodes, self.room(number, np.inf)[None])[0] else -np.inf

    def _table(self, number: int, exempt: tuple[str, ...]) -> tuple[Floats, Ints]:
        """([T], [T + 1, W]): the instants at which room comes or goes, and what is left from each on; a last row of
        plenty for spans that go on for ever."""
        found = self._tables[number].get(exempt)
        if found is None:
            times, _ = self._ahead.path(number)
            known = {self.now, *np.maximum(times[1:], self.now).tolist()}
            for claim, _ in self._of.get(number, ()):
                known |= {at for at in (claim.from_at, claim.until_at) if self.now < at < np.inf}
            instants = sorted(known)
            rows = [self._left(number, at, exempt) for at in instants]
            left = np.array([*rows, np.full(len(rows[0]), NEVER)])
            if number in self._spare:
                left = np.minimum(left, self._spare[number])
            found = self._tables[number][exempt] = (np.array(instants), left)
        return found

    def _forget(self, number: int) -> None:
        self._tables.pop(number, None)
        self._rooms.pop(number, None)

    def between(self, number: int, since: float, until: float, exempt: Sequence[str]) -> Ints:
        """[W]: what of a node will be free at `since` and nobody else's until `until`."""
        least = self._left(number, since, exempt)
        for at in self._instants(number, since, until):
            least = np.minimum(least, self._left(number, at, exempt))
        return np.minimum(least, self._spare[number]) if number in self._spare else least

    def _instants(self, number: int, since: float, until: float) -> list[float]:
        """The instants in [since, until) at which claims on a node take room: nothing else takes any."""
        found = (max(since, claim.from_at) for claim, _ in self._of.get(number, ()) if claim.until_at > since)
        return sorted({at for at in found if at < until})

    def _left(self, number: int, at: float, exempt: Sequence[str] | None) -> Ints:
        """[W]: what is free then beside what is claimed then; `exempt` reservations (None: all) claim nothing."""
        row = self._ahead.free_at(number, at)
        for claim, claimed in self._of.get(number, ()):
            counts = not claim.reservation or (exempt is not None and claim.reservation not in exempt)
            if counts and claim.from_at <= at < claim.until_at:
                row = row - claimed
        return row
