"""Reservations: keeps capacity free for them, and decides which requests may use which nodes next to it.

The snapshot owns a `ReservedCapacity`: call `update` at the beginning of a pass, `take` and `give` after those of the
grid and the allocations. For each request backfill reads `open_nodes` (nodes on which it may start) and `own_nodes`
(those of its own reservation), and picks devices within `without_reserved`. The API calls `feasible` first.

A reservation is `count` places on chosen nodes (reservation_places.py). A workload that does not end before the window
must fit next to the places. Within the window, the owner's workloads start in the places; a used place is not reserved
again until its workload has ended. Allocations within a reservation are in `counted`: quotas do not count them, and
they are never evicted.
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
from commonage.scheduler.backfill.reservation_places import (
    ReservationPlaces,
    ReservationState,
    estimated_places,
    places_of,
)
from commonage.scheduler.backfill.timeline import BEGUN, Window
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid, Rows
from commonage.scheduler.model.shapes import AllocatedRequest, Bools, Ints, QueuedRequest, Shape
from commonage.scheduler.model.space import everywhere, fits_in, free_rows, pick_devices, times_in, whole_rows, width

MAX_VIEWS = 64  # cached views: requests share a view if the same reservations begin before they end


@dataclass(slots=True, eq=False)
class _View:
    """The reserved room for a group of requests: `unavailable` [N, W].

    `last_start` is the last start of a reservation before the requests end; `own` the reservation that they may use.
    """

    unavailable: Ints
    last_start: float
    own: str | None
    rows: Rows


class ReservedCapacity:
    """Capacity reserved as of the last update. `counted`: ids of attempts within a reservation."""

    def __init__(
        self, grid: Grid, allocations: AllocationTable, reservations: Iterable[Reservation] = (), now: float = 0.0
    ) -> None:
        self.counted: set[str] = set()
        self.now = now
        self._grid, self._allocations = grid, allocations
        self._reservation_of: dict[
            str, str
        ] = {}  # the reservation of each counted attempt: stays until the attempt ends
        self._views: dict[tuple[float, str | None], _View] = {}
        self._places = ReservationPlaces(allocations, self._update_views)
        self._declared: list[Reservation] = []
        self._starts: list[float] = []
        self._phase = (-1, -1)
        self._missing: dict[str, int] = {}
        self.update(reservations, now)

    # --- updates ----------------------------------------------------------------------------------------------

    def update(self, reservations: Iterable[Reservation], now: float) -> None:
        """Begin a pass: drop expired reservations, begin due ones, and choose missing places."""
        self.now = now
        declared = sorted((reservation for reservation in reservations if reservation.ends_at > now), key=_order)
        new_grid, is_changed = self._phase[0] != self._grid.epoch, declared != self._declared
        if new_grid:
            self._views.clear()
            self._places.renumber()
        if is_changed:
            self._places.declare(declared, now)
            self._declared = declared
        has_begun = self._places.begin(now)
        if is_changed or has_begun or new_grid:
            self._reset_usage()
        touched = self._grid.changed_since(-1 if is_changed or new_grid else self._phase[1])
        self._places.repair(set(touched.tolist()))
        self._phase = (self._grid.epoch, self._grid.changes)
        self._missing = {name: -state.excess for name, state in self._places.states.items() if state.excess < 0}

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo all changes made inside when the context ends: used places, and advanced time."""
        now, declared, reservation_of = self.now, list(self._declared), dict(self._reservation_of)
        before = {name: list(state.places) for name, state in self._places.states.items()}
        try:
            yield
        finally:
            after = {name: list(state.places) for name, state in self._places.states.items()}
            if (before, declared) == (after, self._declared) and (not declared or self.now == now):
                self.now = now
            else:
                self._places = ReservationPlaces(self._allocations, self._update_views)
                self._declared, self._phase = [], (-1, -1)
                self._reservation_of = reservation_of
                self.update(declared, now)
                self._places.restore(before)

    def _reset_usage(self) -> None:
        states = self._places.states.values()
        self._starts = sorted({state.reservation.starts_at for state in states if not state.begun})
        self._views.clear()
        self.counted = set()
        for state in states:
            state.used.clear()
        if any(state.begun for state in states):
            for allocated in sorted(
                self._allocations, key=lambda allocated: (allocated.allocation.at, allocated.allocation.attempt_id)
            ):
                self._count_usage(allocated)

    def take(self, allocated: AllocatedRequest) -> None:
        """Record a start. Call it after the grid and the allocations."""
        number = self._node_changed(allocated)
        state = self._count_usage(allocated)
        if state is not None and number is not None:
            self._places.free_places_for(state, allocated.allocation, number)

    def give(self, allocated: AllocatedRequest) -> None:
        """Record an end. Call it after the grid and the allocations. The next update reserves its place again."""
        self._node_changed(allocated)
        self._reservation_of.pop(allocated.allocation.attempt_id, None)
        if allocated.allocation.attempt_id in self.counted:
            self.counted.discard(allocated.allocation.attempt_id)
            for state in self._places.states.values():
                state.used.pop(allocated.allocation.attempt_id, None)

    def _node_changed(self, allocated: AllocatedRequest) -> int | None:
        number = self._grid.number.get(allocated.allocation.node_key)
        if number is not None and self._places.timeline.node_changed(number):
            self._update_views(number)
        return number

    def _count_usage(self, allocated: AllocatedRequest) -> ReservationState | None:
        """Assign an allocation to the reservation in which it started; returns that reservation."""
        attempt_id = allocated.allocation.attempt_id
        own = [
            (
                self._reservation_of.get(attempt_id) != name,
                abs(size - 1),
                not any(place.node_key == allocated.allocation.node_key for place in state.places),
                name,
                size,
            )
            for name, state in self._places.states.items()
            if state.begun
            and state.reservation.starts_at <= allocated.allocation.at
            and state.is_for(allocated.tenant, allocated.owner)
            and state.wanted
            for size in [places_of(self._grid, allocated.allocation, state.shape)]
        ]
        if not own:
            return None
        *_, name, size = min(own)
        self._places.states[name].used[attempt_id] = size
        self._reservation_of[attempt_id] = name
        self.counted.add(attempt_id)
        return self._places.states[name]

    # --- queries ------------------------------------------------------------------------------------------------------

    def open_nodes(self, queued: QueuedRequest, shape: Shape) -> Bools | None:
        """[N], read-only: the nodes on which reservations let the request start now; None: all.

        Where nothing is reserved for others, True does not mean that the request fits.
        """
        view = self._view(queued, shape)
        return None if view is None else np.asarray(view.rows.of(shape), np.bool_)

    def unreserved(self, queued: QueuedRequest, shape: Shape) -> Bools | None:
        """[N]: the nodes without capacity reserved for others; None: all."""
        view = self._view(queued, shape)
        return None if view is None else np.asarray(~view.unavailable.any(axis=1), np.bool_)

    def own_nodes(self, queued: QueuedRequest, shape: Shape) -> Bools | None:
        """[N]: the nodes on which the request fits into its own reservation; None: none.

        The pass tries them first, regardless of quotas and earlier requests: no other request may use this capacity.
        """
        own = self._own_reservation(queued, shape)
        if own is None or not self._places.states[own].places:
            return None
        own_nodes = np.zeros(len(self._grid.nodes), np.bool_)
        rows = self._places.rows(self._places.states[own].places)
        nodes = np.array(list(rows), np.int64)
        own_nodes[nodes] = fits_in(self._grid, shape, nodes, np.array(list(rows.values())))
        return own_nodes if own_nodes.any() else None

    def devices(self, queued: QueuedRequest, shape: Shape, number: int) -> Sequence[int] | None:
        """The devices of the request's own reservation on a node; None if it does not fit into that."""
        own = self._own_reservation(queued, shape)
        row = None if own is None else self._places.rows(self._places.states[own].places).get(number)
        if row is None or not fits_in(self._grid, shape, np.array([number]), row[None])[0]:
            return None
        return pick_devices(self._grid, shape, number, row)

    @contextmanager
    def without_reserved(self, queued: QueuedRequest, shape: Shape, number: int) -> Iterator[None]:
        """Inside the context, the grid shows only what the request may use on a node, to pick devices."""
        view = self._view(queued, shape)
        if view is None or not view.unavailable[number].any():
            yield
            return
        with self._grid.reduced(number, view.unavailable[number].copy()):
            yield

    def missing(self, reservation_id: str) -> int:
        return self._missing.get(reservation_id, 0)

    def places(self, reservation_id: str) -> Sequence[Allocation]:
        state = self._places.states.get(reservation_id)
        return [] if state is None else list(state.places)

    def windows(self) -> Iterator[tuple[int, str, Window, Ints]]:
        """All reserved capacity: node number, reservation id, window (from -inf if it has begun), row [W]."""
        return self._places.timeline.windows()

    def shortfall(self, reservation_id: str) -> Reason | None:
        state = self._places.states.get(reservation_id)
        if state is None or not self.missing(reservation_id):
            return None
        nodes, count = everywhere(self._grid), state.wanted
        ever = times_in(self._grid, state.shape, nodes, whole_rows(self._grid, nodes))
        request = str(state.reservation.request)
        if ever.sum() < count:
            return refusals.ReservationTooLarge(count=count, request=request, room=int(ever.sum()))
        late = self._allocations.after(max(state.reservation.starts_at, self.now), np.flatnonzero(ever))
        endless = sum(allocated.ends_at is None for allocated in late)
        places = len(state.places)
        return refusals.ReservationBlocked(
            count=count, request=request, places=places, workloads=len(late), endless=endless
        )

    # --- views --------------------------------------------------------------------------------------------------------

    def _own_reservation(self, queued: QueuedRequest, shape: Shape) -> str | None:
        """The begun reservation that the request may use, with the most similar places; None without one."""
        own = [
            (abs(estimated_places(shape, state.shape) - 1), name)
            for name, state in self._places.states.items()
            if state.begun and state.is_for(queued.tenant, queued.owner) and state.wanted
        ]
        return min(own)[1] if own else None

    def _view(self, queued: QueuedRequest, shape: Shape) -> _View | None:
        if not self._places.states:
            return None
        before = len(self._starts)
        if queued.time_limit_s is not None:
            before = bisect_left(self._starts, self.now + queued.time_limit_s)
        last_start = self._starts[before - 1] if before else BEGUN
        own = self._own_reservation(queued, shape)
        view = self._views.get((last_start, own))
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            unavailable = np.zeros((len(self._grid.nodes), width(self._grid)), np.int64)
            for number in self._places.timeline.nodes:
                unavailable[number] = self._places.timeline.unavailable(number, last_start, own)
            view = self._views[last_start, own] = _View(
                unavailable, last_start, own, Rows(self._grid, lambda *_: unavailable)
            )
            view.rows = Rows(self._grid, partial(self._allowed, view))
        return view

    def _allowed(self, view: _View, shape: Shape, nodes: Ints) -> Bools:
        allowed = np.ones(len(nodes), np.bool_)
        some = np.flatnonzero(view.unavailable[nodes].any(axis=1))
        if len(some):
            at = nodes[some]
            allowed[some] = fits_in(self._grid, shape, at, free_rows(self._grid, at) - view.unavailable[at])
        return allowed

    def _update_views(self, number: int) -> None:
        for view in self._views.values():
            view.unavailable[number] = self._places.timeline.unavailable(number, view.last_start, view.own)
        self._grid.touch(number)


def feasible(
    grid: Grid, allocations: AllocationTable, reservations: Iterable[Reservation], wanted: Reservation, now: float
) -> Reason | None:
    """Why a reservation is not possible next to existing reservations and allocations; None if it is."""
    others = [other for other in reservations if other.id != wanted.id]
    alone, kept = (
        ReservedCapacity(grid, allocations, others, now),
        ReservedCapacity(grid, allocations, [*others, wanted], now),
    )
    if not kept.missing(wanted.id) and any(kept.missing(other.id) > alone.missing(other.id) for other in others):
        return refusals.ReservationCollides()
    return kept.shortfall(wanted.id)


def _order(reservation: Reservation) -> tuple[float, str]:
    return (reservation.starts_at, reservation.id)
