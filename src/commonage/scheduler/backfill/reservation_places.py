"""Chooses the places of reservations: future allocations on nodes where they will be available.

Owned by reservations.py. Places go where most is free now, then where time limits free enough in time. They stay as
long as they will be available; if some are missing, all are chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from commonage.domain.nodes import Allocation
from commonage.domain.tenants import Reservation
from commonage.scheduler.backfill.timeline import BEGUN, Timeline, Window
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import NEVER, Ints, Shape
from commonage.scheduler.model.space import everywhere, fits_in, free_rows, pick_devices, row_of, times_in

ROUNDING = 1e-9


@dataclass(slots=True)
class ReservationState:
    """A reservation and its places. `used`: the places that each attempt within it takes, by attempt id."""

    reservation: Reservation
    shape: Shape
    begun: bool = False
    places: list[Allocation] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        return max(0, self.reservation.count - math.ceil(sum(self.used.values()) - ROUNDING))

    @property
    def excess(self) -> int:
        """The number of superfluous places; negative if some are missing."""
        return len(self.places) - self.wanted

    @property
    def window(self) -> Window:
        """The window of the places; from -inf if it has begun."""
        return (BEGUN if self.begun else self.reservation.starts_at, self.reservation.ends_at)

    def is_for(self, tenant: str, owner: str) -> bool:
        return self.reservation.tenant == tenant and self.reservation.owner in (None, owner)


class ReservationPlaces:
    """Reservations by id, and the timeline with their places. `changed(node)` is called for each change."""

    def __init__(self, allocations: AllocationTable, changed: Callable[[int], None]) -> None:
        self.grid, self._allocations, self._changed = allocations.grid, allocations, changed
        self.timeline = Timeline(allocations)
        self.states: dict[str, ReservationState] = {}
        self._missing_before = 0

    # --- windows ------------------------------------------------------------------------------------------------------

    def declare(self, reservations: Sequence[Reservation], now: float) -> None:
        """Replace the reservations; unchanged ones stay in place."""
        before, self.states = self.states, {}
        for reservation in reservations:
            old = before.pop(reservation.id, None)
            if old is not None and old.reservation == reservation:
                self.states[reservation.id] = old
                continue
            self.states[reservation.id] = ReservationState(
                reservation, self.grid.shape(reservation.request), reservation.starts_at <= now
            )
            places = [] if old is None or old.reservation.request != reservation.request else list(old.places)
            if old is not None:
                self._remove_all(old)
            self._add(self.states[reservation.id], places[: reservation.count])
        for old in before.values():
            self._remove_all(old)
        self._missing_before = 0

    def restore(self, places: Mapping[str, Sequence[Allocation]]) -> None:
        for state in self.states.values():
            self._remove_all(state)
        for name, state in self.states.items():
            self._add(state, places.get(name, ()))

    def begin(self, now: float) -> bool:
        """Begin the windows that are due; returns whether any was."""
        begins = [state for state in self.states.values() if not state.begun and state.reservation.starts_at <= now]
        for state in begins:
            state.begun = True
            for number in {
                self.grid.number[place.node_key] for place in state.places if place.node_key in self.grid.number
            }:
                self.timeline.begin(number, state.reservation.id)
                self._changed(number)
        return bool(begins)

    def renumber(self) -> None:
        """Follow a renumbering of the grid. Drops places on removed nodes."""
        self.timeline = Timeline(self._allocations)
        for state in self.states.values():
            state.shape = self.grid.shape(state.reservation.request)
            places = [place for place in state.places if place.node_key in self.grid.number]
            state.places.clear()
            self._add(state, places)

    # --- repair -------------------------------------------------------------------------------------------------------

    def repair(self, touched: Collection[int]) -> None:
        """Replace places that will not be available, and drop superfluous ones."""
        lost = {number for number in self.timeline.nodes if number in touched and self._is_lost(number)}
        if lost:
            for state in self.states.values():
                self._remove(state, [place for place in state.places if self.grid.number[place.node_key] in lost])
        odd = [state for state in self.states.values() if state.excess]
        for state in odd:
            self._remove(state, state.places[state.wanted :])
        for state in odd:
            self._choose(state)
        missing_places = self._missing_places(odd)
        if missing_places > self._missing_before:
            self._rearrange()
            missing_places = self._missing_places(self.states.values())
        self._missing_before = missing_places

    def _is_lost(self, number: int) -> bool:
        if not self.grid.ready[number] or self.timeline.is_short(number):
            return True
        devices = self.grid.kind.shape[1]
        return bool((self.timeline.total(number)[2 : 2 + devices] > 0)[self.grid.kind[number] < 0].any())

    def _missing_places(self, states: Iterable[ReservationState]) -> int:
        return sum(max(0, -state.excess) for state in states)

    def _rearrange(self) -> None:
        """Choose all places again for reservations with missing places and for those that overlap with them."""
        states = self._overlapping([state for state in self.states.values() if state.excess < 0])
        by_size = sorted(states, key=lambda state: -max(state.shape.gpu_milli, state.shape.cpus_milli))
        best = (self._missing_places(states), [list(state.places) for state in states])
        for order in (states, by_size, states[::-1]):
            for state in states:
                self._remove_all(state)
            for state in order:
                self._choose(state)
            best = min(
                best, (self._missing_places(states), [list(state.places) for state in states]), key=itemgetter(0)
            )
            if not best[0]:
                return
        for state, places in zip(states, best[1], strict=True):
            self._remove_all(state)
            self._add(state, places)

    def _overlapping(self, some: list[ReservationState]) -> list[ReservationState]:
        """`some`, and all reservations with overlapping windows, transitively."""
        starts_at = min(state.window[0] for state in some)
        ends_at = max(state.window[1] for state in some)
        overlapping: list[ReservationState] = []
        while True:
            wider = [
                state for state in self.states.values() if state.window[0] < ends_at and starts_at < state.window[1]
            ]
            if len(wider) == len(overlapping):
                return overlapping
            overlapping = wider
            starts_at, ends_at = min(state.window[0] for state in wider), max(state.window[1] for state in wider)

    def _remove_all(self, state: ReservationState) -> None:
        self._remove(state, list(state.places))

    def free_places_for(self, state: ReservationState, allocation: Allocation, number: int) -> None:
        """Free places of a reservation after one of its attempts has started on a node."""
        here = [place for place in state.places if place.node_key == allocation.node_key]
        here.sort(key=lambda place: _devices(place) != _devices(allocation))
        others = [place for place in reversed(state.places) if place.node_key != allocation.node_key]
        self._remove(state, [*here, *others][: max(0, state.excess)])
        if self.timeline.is_short(number):
            self._remove(state, [place for place in state.places if place.node_key == allocation.node_key])
            self._place(state, number, -state.excess)
            self._choose(state)

    def _choose(self, state: ReservationState) -> None:
        """Choose the missing places: first where capacity is free now, then where it will be."""
        missing = -state.excess
        if missing <= 0:
            return
        nodes = everywhere(self.grid)
        room = self.timeline.room(state.window)
        then = times_in(self.grid, state.shape, nodes, room)
        free = np.minimum(room, free_rows(self.grid, nodes))
        at_once = np.minimum(then, times_in(self.grid, state.shape, nodes, free))
        for most in (at_once, then - at_once):
            while missing > 0 and most.any():
                number = _fewest_nodes(most, missing)
                placed = self._place(state, number, min(missing, int(most[number])))
                missing -= placed
                most[number] = 0

    def _place(self, state: ReservationState, number: int, most: int) -> int:
        """Put at most `most` places on a node; returns the number that fitted."""
        nodes, room = np.array([number]), self.timeline.room_on(number, state.window)
        placed: list[Allocation] = []
        while len(placed) < most and fits_in(self.grid, state.shape, nodes, room[None])[0]:
            devices = pick_devices(self.grid, state.shape, number, room)
            attempt = f"{state.reservation.id}/{len(state.places) + len(placed)}"
            placed.append(self.grid.allocation(state.shape, number, devices, attempt, state.reservation.starts_at))
            room = room - row_of(self.grid, placed[-1])
        self._add(state, placed)
        return len(placed)

    def _add(self, state: ReservationState, places: Sequence[Allocation]) -> None:
        state.places += places
        self._load(state, places, 1)

    def _remove(self, state: ReservationState, places: Sequence[Allocation]) -> None:
        gone = {id(place) for place in places}
        state.places[:] = [place for place in state.places if id(place) not in gone]
        self._load(state, places, -1)

    def _load(self, state: ReservationState, places: Sequence[Allocation], sign: int) -> None:
        for number, row in self.rows(places).items():
            self.timeline.reserve(number, state.reservation.id, state.window, sign * row)
            self._changed(number)

    def rows(self, places: Sequence[Allocation]) -> dict[int, Ints]:
        """The reserved row of each node."""
        rows: dict[int, Ints] = {}
        for place in places:
            number, row = self.grid.number[place.node_key], row_of(self.grid, place)
            rows[number] = rows[number] + row if number in rows else row
        return rows


def _fewest_nodes(most: Ints, missing: int) -> int:
    """The node that takes all missing places with the least left over; else the node that takes most."""
    enough = np.flatnonzero(most >= missing)
    if len(enough):
        return int(enough[np.argmin(most[enough])])
    return int(np.argmax(most))


def _devices(allocation: Allocation) -> set[str]:
    return {share.device_uuid for share in allocation.shares}


def places_of(grid: Grid, allocation: Allocation, shape: Shape) -> float:
    """The number of places of a shape that an allocation takes."""
    devices, number = 0.0, grid.number.get(allocation.node_key)
    for share in allocation.shares:
        index = None if number is None else grid.device(number, share.device_uuid)
        need = NEVER if number is None or index is None else int(shape.need_mib[grid.kind[number, index]])
        devices += share.memory_mib / need if 0 < need < NEVER else 1.0
    return max(
        allocation.cpus_milli / max(1, shape.cpus_milli),
        allocation.memory_mib / max(1, shape.memory_mib),
        devices / shape.devices if shape.devices else 0.0,
    )


def estimated_places(shape: Shape, place: Shape) -> float:
    """The number of places that a shape takes, estimated before it is placed; 1 for the same shape."""
    if shape is place:
        return 1.0
    return 0.01 + max(
        shape.cpus_milli / max(1, place.cpus_milli),
        shape.memory_mib / max(1, place.memory_mib),
        shape.gpu_milli / max(1, place.gpu_milli),
    )
