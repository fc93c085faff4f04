"""Keeps room free for reservations, and decides which requests may use which nodes next to it.

The pass owns a `ReservedCapacity` together with its grid and holdings: call `update` at the beginning of a pass and
when the nodes
changed, `take` and `give` after those of the grid and holdings. For each request it reads `mask` (where it may start),
`home` (the room kept for it: the first choice) and picks devices within `aside`. The API calls `feasible` before it
admits a reservation.

A reservation is `count` places: allocations on chosen nodes that begin with its window. Places go where most is free
now, then where time limits free enough in time, and stay there as long as that holds. A workload that runs into a
window without ending before it must fit next to the places. Within the window the owner's workloads start in the
places, and a used place is not kept until it is free again. Allocations within a reservation are in `counted`: quotas
do not count them and they are never evicted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason, refusals
from commonage.domain.tenants import Reservation
from commonage.scheduler.backfill.reservation_places import ReservationPlaces, State, likeness, places_of
from commonage.scheduler.backfill.timeline import BEGUN, Window
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid, Rows
from commonage.scheduler.model.queued_requests import Held, QueuedRequest
from commonage.scheduler.model.shapes import Bools, Ints, Shape
from commonage.scheduler.model.space import everywhere, fits_in, free_rows, pick_devices, times_in, whole_rows, width

MOST_VIEWS = 64
"""The number of sorts of requests (by the reservations that begin before they end) that are distinguished at a time."""


@dataclass(slots=True, eq=False)
class _View:
    """The room that one sort of request must leave free: `less` [N, W]. Its requests stay beyond `until`, the last
    beginning of a reservation before they end; `mine` is the reservation for which they qualify.
    """

    less: Ints
    until: float
    mine: str | None
    rows: Rows


class ReservedCapacity:
    """The room that reservations keep, as of the last update. `counted`: attempts held within a reservation."""

    def __init__(
        self, grid: Grid, allocations: AllocationTable, reservations: Iterable[Reservation] = (), now: float = 0.0
    ) -> None:
        self.counted: set[str] = set()
        self.now = now
        self._grid, self._allocations = grid, allocations
        self._views: dict[tuple[float, str | None], _View] = {}
        self._places = ReservationPlaces(allocations, self._reckon)
        self._declared: list[Reservation] = []
        self._starts: list[float] = []
        self._phase = (-1, -1)
        self._missing: dict[str, int] = {}
        self.update(reservations, now)

    # --- keeping in step ----------------------------------------------------------------------------------------------

    def update(self, reservations: Iterable[Reservation], now: float) -> None:
        """Begin a pass: drop expired reservations, begin due ones, and choose places for those without or with lost
        ones.
        """
        self.now = now
        declared = sorted((one for one in reservations if one.ends_at > now), key=_order)
        new_grid, news = self._phase[0] != self._grid.epoch, declared != self._declared
        if new_grid:
            self._views.clear()
            self._places.renumber()
        if news:
            self._places.declare(declared, now)
            self._declared = declared
        begins = self._places.begin(now)
        if news or begins or new_grid:
            self._begin_anew()
        touched = range(len(self._grid.nodes)) if news or new_grid else self._grid.changed[self._phase[1] :]
        self._places.repair(set(touched))
        self._phase = (self._grid.epoch, len(self._grid.changed))
        self._missing = {name: -state.excess for name, state in self._places.states.items() if state.excess < 0}

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Undo everything inside at the end: places may have been used, and time may have advanced."""
        now, declared = self.now, list(self._declared)
        before = {name: list(state.places) for name, state in self._places.states.items()}
        try:
            yield
        finally:
            after = {name: list(state.places) for name, state in self._places.states.items()}
            if (before, declared) == (after, self._declared) and (not declared or self.now == now):
                self.now = now
            else:
                self._places = ReservationPlaces(self._allocations, self._reckon)
                self._declared, self._phase = [], (-1, -1)
                self.update(declared, now)
                self._places.put_back(before)

    def _begin_anew(self) -> None:
        """Reset what depends on the owners of reservations and on the next beginnings."""
        states = self._places.states.values()
        self._starts = sorted({state.reservation.starts_at for state in states if not state.begun})
        self._views.clear()
        self.counted = set()
        for state in states:
            state.used.clear()
        if any(state.begun for state in states):
            for held in sorted(self._allocations, key=lambda held: (held.allocation.at, held.allocation.attempt_id)):
                self._count(held)

    def take(self, held: Held) -> None:
        """Note a start, after it was taken in the grid and the holdings."""
        number = self._moved(held)
        state = self._count(held)
        if state is not None and number is not None:
            self._places.make_way(state, held.allocation, number)

    def give(self, held: Held) -> None:
        """Note an end, after it was given back in the grid and the holdings. Its place is kept again from the next
        update on.
        """
        self._moved(held)
        if held.allocation.attempt_id in self.counted:
            self.counted.discard(held.allocation.attempt_id)
            for state in self._places.states.values():
                state.used.pop(held.allocation.attempt_id, None)

    def _moved(self, held: Held) -> int | None:
        number = self._grid.number.get(held.allocation.node)
        if number is not None and self._places.line.moved(number):
            self._reckon(number)
        return number

    def _count(self, held: Held) -> State | None:
        """Count an allocation that started in its window against a reservation; returns that reservation."""
        mine = [
            (abs(size - 1), not any(place.node == held.allocation.node for place in state.places), name, size)
            for name, state in self._places.states.items()
            if state.begun
            and state.reservation.starts_at <= held.allocation.at
            and state.is_for(held.tenant, held.owner)
            and state.wanted
            for size in [places_of(self._grid, held.allocation, state.shape)]
        ]
        if not mine:
            return None
        *_, name, size = min(mine)
        self._places.states[name].used[held.allocation.attempt_id] = size
        self.counted.add(held.allocation.attempt_id)
        return self._places.states[name]

    # --- answers ------------------------------------------------------------------------------------------------------

    def mask(self, queued: QueuedRequest, shape: Shape) -> Bools | None:
        """[N], read-only: where the ask may start now with regard to all kept room; None: everywhere. On nodes without
        room kept from it, True does not say that it fits.
        """
        view = self._view(queued, shape)
        return None if view is None else np.asarray(view.rows.of(shape), np.bool_)

    def clear(self, queued: QueuedRequest, shape: Shape) -> Bools | None:
        """[N]: the nodes without room kept from the request; None: all. Room freed there is available to it."""
        view = self._view(queued, shape)
        return None if view is None else np.asarray(~view.less.any(axis=1), np.bool_)

    def home(self, queued: QueuedRequest, shape: Shape) -> Bools | None:
        """[N]: the nodes on which the room kept for the request is enough; None: nowhere. It goes there first,
        regardless of quotas and of requests that wait longer: no other request could use that room.
        """
        mine = self._mine(queued, shape)
        if mine is None or not self._places.states[mine].places:
            return None
        home = np.zeros(len(self._grid.nodes), np.bool_)
        rows = self._places.rows(self._places.states[mine])
        nodes = np.array(list(rows), np.int64)
        home[nodes] = fits_in(self._grid, shape, nodes, np.array(list(rows.values())))
        return home if home.any() else None

    def devices(self, queued: QueuedRequest, shape: Shape, number: int) -> Sequence[int] | None:
        """The devices within the room kept for the request on a node, if that is enough; else None."""
        mine = self._mine(queued, shape)
        row = None if mine is None else self._places.rows(self._places.states[mine]).get(number)
        if row is None or not fits_in(self._grid, shape, np.array([number]), row[None])[0]:
            return None
        return pick_devices(self._grid, shape, number, row)

    @contextmanager
    def aside(self, queued: QueuedRequest, shape: Shape, number: int) -> Iterator[None]:
        """Inside, the grid shows only what the request may use on a node: for a policy that picks devices."""
        view = self._view(queued, shape)
        if view is None or not view.less[number].any():
            yield
            return
        with self._grid.less(number, view.less[number].copy()):
            yield

    def missing(self, reservation_id: str) -> int:
        """The number of places of a reservation that could not be kept."""
        return self._missing.get(reservation_id, 0)

    def places(self, reservation_id: str) -> Sequence[Allocation]:
        """The places of a reservation, as allocations that nobody holds yet."""
        state = self._places.states.get(reservation_id)
        return [] if state is None else list(state.places)

    def windows(self) -> Iterator[tuple[int, str, Window, Ints]]:
        """All kept room: number of the node, id of the reservation, window (from -inf: it has begun), and row [W]."""
        return self._places.line.windows()

    def shortfall(self, reservation_id: str) -> Reason | None:
        """Why not all of a reservation is kept; None if it is."""
        state = self._places.states.get(reservation_id)
        return None if state is None or not self.missing(reservation_id) else self._why(state)

    def _why(self, state: State) -> Reason:
        nodes, count = everywhere(self._grid), state.wanted
        ever = times_in(self._grid, state.shape, nodes, whole_rows(self._grid, nodes))
        request = str(state.reservation.request)
        if ever.sum() < count:
            return refusals.ReservationTooLarge(count=count, request=request, room=int(ever.sum()))
        late = self._allocations.after(max(state.reservation.starts_at, self.now), np.flatnonzero(ever))
        endless = sum(held.ends_at is None for held in late)
        places = len(state.places)
        return refusals.ReservationBlocked(
            count=count, request=request, places=places, workloads=len(late), endless=endless
        )

    # --- views --------------------------------------------------------------------------------------------------------

    def _mine(self, queued: QueuedRequest, shape: Shape) -> str | None:
        """The reservation that has begun, is for the request, and resembles it most."""
        mine = [
            (abs(likeness(shape, state.shape) - 1), name)
            for name, state in self._places.states.items()
            if state.begun and state.is_for(queued.tenant, queued.owner) and state.wanted
        ]
        return min(mine)[1] if mine else None

    def _view(self, queued: QueuedRequest, shape: Shape) -> _View | None:
        """The room that the request must leave; None if nothing is kept."""
        if not self._places.states:
            return None
        before = len(self._starts)
        if queued.time_limit_s is not None:
            before = bisect_left(self._starts, self.now + queued.time_limit_s)
        until = self._starts[before - 1] if before else BEGUN
        mine = self._mine(queued, shape)
        view = self._views.get((until, mine))
        if view is None:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            less = np.zeros((len(self._grid.nodes), width(self._grid)), np.int64)
            for number in self._places.line.nodes:
                less[number] = self._places.line.less(number, until, mine)
            view = self._views[until, mine] = _View(less, until, mine, Rows(self._grid, lambda *_: less))
            view.rows = Rows(self._grid, partial(self._allowed, view))
        return view

    def _allowed(self, view: _View, shape: Shape, nodes: Ints) -> Bools:
        allowed = np.ones(len(nodes), np.bool_)
        some = np.flatnonzero(view.less[nodes].any(axis=1))
        if len(some):
            at = nodes[some]
            allowed[some] = fits_in(self._grid, shape, at, free_rows(self._grid, at) - view.less[at])
        return allowed

    def _reckon(self, number: int) -> None:
        """Update all views of a node."""
        for view in self._views.values():
            view.less[number] = self._places.line.less(number, view.until, view.mine)
        self._grid.touch(number)


def feasible(
    grid: Grid, allocations: AllocationTable, reservations: Iterable[Reservation], wanted: Reservation, now: float
) -> Reason | None:
    """Why a reservation cannot be kept next to the existing ones and the allocations; None if it can."""
    others = [one for one in reservations if one.id != wanted.id]
    alone, kept = (
        ReservedCapacity(grid, allocations, others, now),
        ReservedCapacity(grid, allocations, [*others, wanted], now),
    )
    if not kept.missing(wanted.id) and any(kept.missing(one.id) > alone.missing(one.id) for one in others):
        return refusals.ReservationCollides()
    return kept.shortfall(wanted.id)


def _order(one: Reservation) -> tuple[float, str]:
    return (one.starts_at, one.id)
