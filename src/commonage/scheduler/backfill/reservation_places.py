"""Chooses the places of reservations: allocations that nobody holds yet, on nodes where they will be available.

Owned by reservations.py, which knows from which workloads they are kept. Places go where most is free now, then where
time limits free enough in time, and stay as long as that holds. If some are missing, all are chosen again.
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
class State:
    """A reservation and its places; `used` are the attempts within it, each with the number of places it takes."""

    reservation: Reservation
    shape: Shape
    begun: bool = False
    places: list[Allocation] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """The number of places to keep."""
        return max(0, self.reservation.count - math.ceil(sum(self.used.values()) - ROUNDING))

    @property
    def excess(self) -> int:
        """The number of places kept beyond the wanted ones; negative if some are missing."""
        return len(self.places) - self.wanted

    @property
    def window(self) -> Window:
        """The window in which its places are kept; for one that has begun, from -inf."""
        return (BEGUN if self.begun else self.reservation.starts_at, self.reservation.ends_at)

    def is_for(self, tenant: str, owner: str) -> bool:
        """True if the reservation is for that member of that tenant."""
        return self.reservation.tenant == tenant and self.reservation.owner in (None, owner)


class ReservationPlaces:
    """The reservations by id, and the timeline with their places. `changed(node)` is called for each change."""

    def __init__(self, allocations: AllocationTable, changed: Callable[[int], None]) -> None:
        self.grid, self._allocations, self._changed = allocations.grid, allocations, changed
        self.line = Timeline(allocations)
        self.states: dict[str, State] = {}
        self._lacked = 0

    # --- windows ------------------------------------------------------------------------------------------------------

    def declare(self, reservations: Sequence[Reservation], now: float) -> None:
        """Replace the reservations with these, in this order."""
        before, self.states = self.states, {}
        for one in reservations:
            old = before.pop(one.id, None)
            if old is not None and old.reservation == one:
                self.states[one.id] = old
                continue
            self.states[one.id] = State(one, self.grid.shape(one.request), one.starts_at <= now)
            places = [] if old is None or old.reservation.request != one.request else list(old.places)
            if old is not None:
                self._clear(old)
            self._keep(self.states[one.id], places[: one.count])
        for old in before.values():
            self._clear(old)
        self._lacked = 0

    def put_back(self, places: Mapping[str, Sequence[Allocation]]) -> None:
        """Restore the places of these reservations."""
        for state in self.states.values():
            self._clear(state)
        for name, state in self.states.items():
            self._keep(state, places.get(name, ()))

    def begin(self, now: float) -> bool:
        """Begin the windows that are due; returns True if there were any."""
        begins = [one for one in self.states.values() if not one.begun and one.reservation.starts_at <= now]
        for state in begins:
            state.begun = True
            for number in {self.grid.number[place.node] for place in state.places if place.node in self.grid.number}:
                self.line.begin(number, state.reservation.id)
                self._changed(number)
        return bool(begins)

    def renumber(self) -> None:
        """Follow a renumbering of the grid; places on removed nodes are dropped."""
        self.line = Timeline(self._allocations)
        for state in self.states.values():
            state.shape = self.grid.shape(state.reservation.request)
            places = [place for place in state.places if place.node in self.grid.number]
            state.places.clear()
            self._keep(state, places)

    # --- repair -------------------------------------------------------------------------------------------------------

    def repair(self, touched: Collection[int]) -> None:
        """Give up places that will not be available, and superfluous ones; choose others."""
        lost = {number for number in self.line.nodes if number in touched and self._is_lost(number)}
        if lost:
            for state in self.states.values():
                self._drop(state, [place for place in state.places if self.grid.number[place.node] in lost])
        odd = [state for state in self.states.values() if state.excess]
        for state in odd:
            self._drop(state, state.places[state.wanted :])
        for state in odd:
            self._choose(state)
        lacking = self._lacking(odd)
        if lacking > self._lacked:
            self._rearrange()
            lacking = self._lacking(self.states.values())
        self._lacked = lacking

    def _is_lost(self, number: int) -> bool:
        """True if the room kept on a node will not be available, or the node will not work."""
        if not self.grid.ready[number] or self.line.is_short(number):
            return True
        devices = self.grid.kind.shape[1]
        return bool((self.line.most(number)[2 : 2 + devices] > 0)[self.grid.kind[number] < 0].any())

    def _lacking(self, states: Iterable[State]) -> int:
        return sum(max(0, -state.excess) for state in states)

    def _rearrange(self) -> None:
        """Choose all places again for reservations that lack some and for those that overlap: they may make room."""
        states = self._beside([state for state in self.states.values() if state.excess < 0])
        by_size = sorted(states, key=lambda state: -max(state.shape.gpu_milli, state.shape.cpus_milli))
        best = (self._lacking(states), [list(state.places) for state in states])
        for order in (states, by_size, states[::-1]):
            for state in states:
                self._clear(state)
            for state in order:
                self._choose(state)
            best = min(best, (self._lacking(states), [list(state.places) for state in states]), key=itemgetter(0))
            if not best[0]:
                return
        for state, places in zip(states, best[1], strict=True):
            self._clear(state)
            self._keep(state, places)

    def _beside(self, some: list[State]) -> list[State]:
        """These, and all whose windows overlap with theirs, directly or through others."""
        from_at = min(state.window[0] for state in some)
        until = max(state.window[1] for state in some)
        beside: list[State] = []
        while True:
            found = [one for one in self.states.values() if one.window[0] < until and from_at < one.window[1]]
            if len(found) == len(beside):
                return beside
            beside = found
            from_at, until = min(one.window[0] for one in found), max(one.window[1] for one in found)

    def _clear(self, state: State) -> None:
        self._drop(state, list(state.places))

    def make_way(self, state: State, allocation: Allocation, number: int) -> None:
        """Keep less for a reservation after one of its attempts has started on a node."""
        here = [place for place in state.places if place.node == allocation.node]
        here.sort(key=lambda place: _devices(place) != _devices(allocation))
        others = [place for place in reversed(state.places) if place.node != allocation.node]
        self._drop(state, [*here, *others][: max(0, state.excess)])
        if self.line.is_short(number):
            self._drop(state, [place for place in state.places if place.node == allocation.node])
            self._put(state, number, -state.excess)
            self._choose(state)

    def _choose(self, state: State) -> None:
        """Choose the missing places: first where room is free now, then where it will be."""
        missing = -state.excess
        if missing <= 0:
            return
        nodes = everywhere(self.grid)
        room = self.line.room(state.window)
        then = times_in(self.grid, state.shape, nodes, room)
        free = np.minimum(room, free_rows(self.grid, nodes))
        at_once = np.minimum(then, times_in(self.grid, state.shape, nodes, free))
        for most in (at_once, then - at_once):
            while missing > 0 and most.any():
                number = _fewest_nodes(most, missing)
                placed = self._put(state, number, min(missing, int(most[number])))
                missing -= placed
                most[number] = 0

    def _put(self, state: State, number: int, most: int) -> int:
        """Put at most `most` places on a node; returns the number that fitted."""
        nodes, room = np.array([number]), self.line.room_on(number, state.window)
        placed: list[Allocation] = []
        while len(placed) < most and fits_in(self.grid, state.shape, nodes, room[None])[0]:
            devices = pick_devices(self.grid, state.shape, number, room)
            attempt = f"{state.reservation.id}/{len(state.places) + len(placed)}"
            placed.append(self.grid.allocation(state.shape, number, devices, attempt, state.reservation.starts_at))
            room = room - row_of(self.grid, placed[-1])
        self._keep(state, placed)
        return len(placed)

    def _keep(self, state: State, places: Sequence[Allocation]) -> None:
        state.places += places
        self._load(state, places, 1)

    def _drop(self, state: State, places: Sequence[Allocation]) -> None:
        gone = {id(place) for place in places}
        state.places[:] = [place for place in state.places if id(place) not in gone]
        self._load(state, places, -1)

    def _load(self, state: State, places: Sequence[Allocation], sign: int) -> None:
        for number, row in self._rows_of(places).items():
            self.line.keep(number, state.reservation.id, state.window, sign * row)
            self._changed(number)

    def rows(self, state: State) -> dict[int, Ints]:
        """The row that is kept on each node."""
        return self._rows_of(state.places)

    def _rows_of(self, places: Sequence[Allocation]) -> dict[int, Ints]:
        rows: dict[int, Ints] = {}
        for place in places:
            number, row = self.grid.number[place.node], row_of(self.grid, place)
            rows[number] = rows[number] + row if number in rows else row
        return rows


def _fewest_nodes(most: Ints, missing: int) -> int:
    """The node that takes all missing places and has the least left over; if none does, the one that takes most."""
    enough = np.flatnonzero(most >= missing)
    if len(enough):
        return int(enough[np.argmin(most[enough])])
    return int(np.argmax(most))


def _devices(allocation: Allocation) -> set[str]:
    return {share.device_uuid for share in allocation.shares}


def places_of(grid: Grid, allocation: Allocation, shape: Shape) -> float:
    """The number of places of a shape that an allocation takes."""
    devices = 0.0
    for share in allocation.shares:
        at = grid.device(share.device_uuid)
        need = NEVER if at is None else int(shape.need_mib[grid.kind[at]])
        devices += share.memory_mib / need if 0 < need < NEVER else 1.0
    return max(
        allocation.cpus_milli / max(1, shape.cpus_milli),
        allocation.memory_mib / max(1, shape.memory_mib),
        devices / shape.devices if shape.devices else 0.0,
    )


def likeness(shape: Shape, place: Shape) -> float:
    """The number of places that a shape takes, estimated before it is placed; 1 for the same shape."""
    if shape is place:
        return 1.0
    return 0.01 + max(
        shape.cpus_milli / max(1, place.cpus_milli),
        shape.memory_mib / max(1, place.memory_mib),
        shape.gpu_milli / max(1, place.gpu_milli),
    )
