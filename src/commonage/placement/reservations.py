"""What reservations keep free, and who may start where beside it.

The pass owns a `Kept` beside its grid and holdings: `update` at the beginning of a pass and when the fleet changed,
`take` and `give` after what is taken and given there. For each ask it reads `mask` (where it may start), `home` (the
room kept for it: the first choice) and picks cards within `aside`. The API asks `feasible` before it admits one.

A reservation is `count` places: leases on chosen nodes that begin with its window. They are put where most is free now,
then where time limits free enough by then, and stay there as long as that holds. What stays within a window without an
end before it fits beside the places. In the window whoever it is for starts in them, and each place that is used so is
kept no longer until it is free again. What is held within a reservation is in `counted`: quotas do not count it and
nobody evicts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from commonage.domain.fleet import Lease, Share
from commonage.domain.tenants import Reservation
from commonage.placement.asks import Ask, Held
from commonage.placement.grid import Grid, Rows
from commonage.placement.holdings import Holdings
from commonage.placement.places import Places, Stand, likeness, places_of
from commonage.placement.shapes import Bools, Ints, Shape
from commonage.placement.space import everywhere, fits_in, free_rows, row_of, times_in, whole_rows
from commonage.placement.timeline import Timeline


@dataclass(slots=True, eq=False)
class _View:
    """What one sort of asks must leave free of what is free now: `less` [N, W]."""

    less: Ints
    instants: int
    mine: tuple[int, ...]
    rows: Rows


class Kept:
    """What is kept, at the time of the last update. `counted`: attempts that are held within a reservation."""

    def __init__(
        self, grid: Grid, holdings: Holdings, reservations: Iterable[Reservation] = (), now: float = 0.0
    ) -> None:
        self.counted: set[str] = set()
        self.now = now
        self._grid, self._holdings = grid, holdings
        self._views: dict[tuple[int, tuple[int, ...]], _View] = {}
        self._places = Places(grid, Timeline(holdings, [now]), self._reckon)
        self._seen = (-1, -1)
        self._declared: list[Reservation] = []
        self.update(reservations, now)

    # --- keeping in step ----------------------------------------------------------------------------------------------

    def update(self, reservations: Iterable[Reservation], now: float) -> None:
        """Begin a pass: drop what is over, begin what begins, and choose places for what has none or lost its own."""
        declared = sorted((one for one in reservations if one.ends_at > now), key=_order)
        begins = any(self.now < one.reservation.starts_at <= now for one in self._places.stands)
        self.now = now
        if declared != self._declared or begins or self._seen[0] != self._grid.epoch:
            self._declared = declared
            self._rebuild()
            self._places.lacked = 0
            touched = set(range(len(self._grid.nodes)))
        else:
            self._places.line.times[0] = now
            touched = set(self._grid.changed[self._seen[1] :])
        if self._places.stands and (touched or any(stand.excess for stand in self._places.stands)):
            self._places.repair(touched)
        self._seen = (self._grid.epoch, len(self._grid.changed))

    def _rebuild(self) -> None:
        before = {stand.reservation.id: stand for stand in self._places.stands}
        starts = sorted({one.starts_at for one in self._declared if one.starts_at > self.now})
        self._places.line = Timeline(self._holdings, [self.now, *starts])
        self._views.clear()
        self._places.stands = []
        for one in self._declared:
            stand = Stand(one, self._grid.shape(one.request))
            stand.instants = self._places.line.during(one.starts_at, one.ends_at)
            self._places.stands.append(stand)
            old = before.get(one.id)
            if old is not None and old.reservation.request == one.request:
                for place in old.places[: one.count]:
                    self._places.keep(stand, place)
        self.counted = set()
        if any(stand.runs(self.now) for stand in self._places.stands):
            for held in sorted(self._holdings, key=lambda held: (held.lease.at, held.lease.attempt_id)):
                self._count(held)

    def take(self, held: Held) -> None:
        """Something was started, after it was taken in the grid and the holdings."""
        if not self._places.stands:
            return
        self._places.line.end(held, 1)
        number = self._grid.number.get(held.lease.node)
        if number is not None:
            self._reckon(number)
        stand = self._count(held)
        if stand is not None and number is not None:
            self._places.make_way(stand, held.lease, number)

    def give(self, held: Held) -> None:
        """Something has ended, after it was given back in the grid and the holdings. Its place is kept again from the
        next update on."""
        if not self._places.stands:
            return
        self._places.line.end(held, -1)
        number = self._grid.number.get(held.lease.node)
        if number is not None:
            self._reckon(number)
        self.counted.discard(held.lease.attempt_id)
        for stand in self._places.stands:
            stand.used.pop(held.lease.attempt_id, None)

    def _count(self, held: Held) -> Stand | None:
        """Count what was started in its window against a reservation; which one."""
        mine = [
            (abs(size - 1), not any(place.node == held.lease.node for place in stand.places), index, size)
            for index, stand in enumerate(self._places.stands)
            if stand.reservation.starts_at <= min(held.lease.at, self.now)
            and stand.is_for(held.tenant, held.owner)
            and stand.wanted
            for size in [places_of(self._grid, held.lease, stand.shape)]
        ]
        if not mine:
            return None
        *_, index, size = min(mine)
        self._places.stands[index].used[held.lease.attempt_id] = size
        self.counted.add(held.lease.attempt_id)
        return self._places.stands[index]

    # --- answers ------------------------------------------------------------------------------------------------------

    def mask(self, ask: Ask, shape: Shape) -> Bools | None:
        """[N], read only: where the ask may start now for all that is kept; None: everywhere. Whether it fits is not
        said of nodes of which nothing is kept from it."""
        view = self._view(ask, shape)
        return None if view is None else np.asarray(view.rows.of(shape), np.bool_)

    def clear(self, ask: Ask, shape: Shape) -> Bools | None:
        """[N]: the nodes of which nothing is kept from the ask; None: all. Where it may have what somebody leaves."""
        view = self._view(ask, shape)
        return None if view is None else np.asarray(~view.less.any(axis=1), np.bool_)

    def home(self, ask: Ask, shape: Shape) -> Bools | None:
        """[N]: the nodes on which room is kept for the ask now; None: nowhere."""
        places = [place for index in self._mine(ask, shape) for place in self._places.stands[index].places]
        if not places:
            return None
        home = np.zeros(len(self._grid.nodes), np.bool_)
        home[[self._grid.number[place.node] for place in places]] = True
        return home

    @contextmanager
    def aside(self, ask: Ask, shape: Shape, number: int) -> Iterator[None]:
        """Inside, the grid shows of a node only what the ask may have: for a policy that picks cards."""
        view = self._view(ask, shape)
        if view is None or not view.less[number].any():
            yield
            return
        with self._grid.trial():
            self._grid.take(_lease_of(self._grid, number, view.less[number]))
            yield

    def missing(self, reservation_id: str) -> int:
        """How many places of a reservation could not be kept."""
        return sum(
            stand.wanted - len(stand.places) for stand in self._places.stands if stand.reservation.id == reservation_id
        )

    def places(self, reservation_id: str) -> Sequence[Lease]:
        """Where a reservation is kept, as leases that nobody holds yet."""
        return [
            place for stand in self._places.stands if stand.reservation.id == reservation_id for place in stand.places
        ]

    def shortfall(self, reservation_id: str) -> str | None:
        """What is missing of a reservation and why, in numbers, for the admin; None if nothing is."""
        for stand in self._places.stands:
            if stand.reservation.id == reservation_id and stand.excess < 0:
                return self._why(stand)
        return None

    def _why(self, stand: Stand) -> str:
        nodes, count = everywhere(self._grid), stand.wanted
        ever = times_in(self._grid, stand.shape, nodes, whole_rows(self._grid, nodes))
        asked = f"{count} times {stand.reservation.request}"
        if ever.sum() < count:
            return f"the whole fleet has room for {ever.sum()} of {asked} at once; reserve fewer, or less for each"
        late = self._holdings.after(max(stand.reservation.starts_at, self.now), np.flatnonzero(ever))
        endless = sum(held.ends_at is None for held in late)
        held = f"held by {len(late)} workloads that may still run, {endless} of them without a time limit"
        rest = held if late else "kept for other reservations"
        advice = "reserve fewer, choose another time" + (", or stop some of them" if late else "")
        return f"there is room for {len(stand.places)} of {asked} then; the rest is {rest}; {advice}"

    # --- views --------------------------------------------------------------------------------------------------------

    def _mine(self, ask: Ask, shape: Shape) -> tuple[int, ...]:
        """The stand that runs, is for the ask and most like it; none, or one."""
        mine = [
            (abs(likeness(shape, stand.shape) - 1), index)
            for index, stand in enumerate(self._places.stands)
            if stand.is_for(ask.tenant, ask.owner) and stand.runs(self.now) and stand.wanted
        ]
        return (min(mine)[1],) if mine else ()

    def _view(self, ask: Ask, shape: Shape) -> _View | None:
        """How the ask sees what is kept; None if nothing is."""
        if not self._places.stands:
            return None
        instants = self._places.line.until(None if ask.time_limit_s is None else self.now + ask.time_limit_s)
        mine = self._mine(ask, shape)
        view = self._views.get((instants, mine))
        if view is None:
            known = [other for (_, whose), other in self._views.items() if whose == mine and other.instants < instants]
            near = max(known, key=lambda other: other.instants, default=None)
            less = self._less(range(near.instants if near else 0, instants), mine, everywhere(self._grid))
            if near is not None:
                less = np.maximum(less, near.less)
            view = self._views[instants, mine] = _View(less, instants, mine, Rows(self._grid, lambda *_: less))
            view.rows = Rows(self._grid, partial(self._allowed, view))
        return view

    def _allowed(self, view: _View, shape: Shape, nodes: Ints) -> Bools:
        allowed = np.ones(len(nodes), np.bool_)
        some = np.flatnonzero(view.less[nodes].any(axis=1))
        if len(some):
            at = nodes[some]
            allowed[some] = fits_in(self._grid, shape, at, free_rows(self._grid, at) - view.less[at])
        return allowed

    def _less(self, instants: range, mine: tuple[int, ...], nodes: Ints) -> Ints:
        """[n, W]: how much less than is free now may be had at all of these instants, `mine` left out."""
        load = self._places.line.load[instants.start : instants.stop, nodes]
        for index in mine:
            stand = self._places.stands[index]
            at = [instant - instants.start for instant in stand.instants if instant in instants]
            for place in stand.places:
                for column in np.flatnonzero(nodes == self._grid.number[place.node]):
                    load[at, column] -= row_of(self._grid, place)
        short: Ints = np.where(load > 0, load - self._places.line.freed[instants.start : instants.stop, nodes], 0)
        return np.asarray(np.maximum(0, short.max(axis=0)), np.int64)

    def _reckon(self, number: int) -> None:
        """Bring all views of a node in step."""
        for view in self._views.values():
            view.less[number] = self._less(range(view.instants), view.mine, np.array([number]))[0]


def feasible(
    grid: Grid, holdings: Holdings, reservations: Iterable[Reservation], wanted: Reservation, now: float
) -> str | None:
    """Why a reservation cannot be kept beside those there are and what is held, in numbers; None if it can."""
    others = [one for one in reservations if one.id != wanted.id]
    alone, kept = Kept(grid, holdings, others, now), Kept(grid, holdings, [*others, wanted], now)
    if kept.missing(wanted.id) <= 0 and any(kept.missing(one.id) > alone.missing(one.id) for one in others):
        return "no room would be left for the reservations that were made before; choose another time"
    return kept.shortfall(wanted.id)


def _order(one: Reservation) -> tuple[float, str]:
    return (one.starts_at, one.id)


def _lease_of(grid: Grid, number: int, row: Ints) -> Lease:
    """A lease of that much of a node."""
    cards, node = grid.kind.shape[1], grid.nodes[number]
    shares = tuple(
        Share(one.uuid, one.index, one.model, int(row[2 + card]), int(row[2 + cards + card]), False, one.memory_mib)
        for card, one in enumerate(node.report.devices)
        if row[2 + card] or row[2 + cards + card]
    )
    return Lease("kept", node.name, int(row[0]), int(row[1]), shares, 0.0)
