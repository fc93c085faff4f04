"""Where the places of reservations stand: leases that nobody holds yet, on nodes chosen so that they will be there.

Owned by reservations.py, which knows whom they are kept from. Places are put where most is free now, then where time
limits free enough by then, and stay as long as that holds. Where some are missing, all are chosen anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from commonage.domain.fleet import Lease
from commonage.domain.tenants import Reservation
from commonage.placement.grid import Grid
from commonage.placement.shapes import NEVER, Ints, Shape
from commonage.placement.space import everywhere, fits_in, pick_cards, row_of, times_in
from commonage.placement.timeline import Timeline

ROUNDING = 1e-9


@dataclass(slots=True)
class Stand:
    """A reservation and its places; `used` are the attempts within it, each with how many places it takes."""

    reservation: Reservation
    shape: Shape
    instants: list[int] = field(default_factory=list)
    places: list[Lease] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """How many places are to be kept."""
        return max(0, self.reservation.count - math.ceil(sum(self.used.values()) - ROUNDING))

    @property
    def excess(self) -> int:
        """How many more places are kept than wanted; less than nothing where some are missing."""
        return len(self.places) - self.wanted

    def runs(self, now: float) -> bool:
        """True if its window has begun."""
        return self.reservation.starts_at <= now

    def is_for(self, tenant: str, owner: str) -> bool:
        """True if it is for that member of that tenant."""
        return self.reservation.tenant == tenant and self.reservation.owner in (None, owner)


class Places:
    """The stands, and the timeline that has their places as its load. `changed(node)` is called for each change."""

    def __init__(self, grid: Grid, line: Timeline, changed: Callable[[int], None]) -> None:
        self.grid, self.line, self._changed = grid, line, changed
        self.stands: list[Stand] = []
        self.lacked = 0

    def repair(self, touched: set[int]) -> None:
        """Give up places that will not be there, and those too many; choose others."""
        lost = {
            number
            for number in {self.grid.number.get(place.node, -1) for stand in self.stands for place in stand.places}
            if number < 0 or (number in touched and (not self.grid.ready[number] or self.line.short(number)))
        }
        for stand in self.stands:
            for place in list(stand.places):
                if self.grid.number.get(place.node, -1) in lost or self._is_broken(place, touched):
                    self._drop(stand, place)
            for place in stand.places[stand.wanted :]:
                self._drop(stand, place)
        for stand in self.stands:
            self._choose(stand)
        if self._lacking() > self.lacked:
            self._rearrange()
        self.lacked = self._lacking()

    def _lacking(self) -> int:
        return sum(max(0, -stand.excess) for stand in self.stands)

    def _rearrange(self) -> None:
        """Choose all places anew, whatever stood where: reservations that overlap may leave more for each other."""
        by_size = sorted(self.stands, key=lambda stand: -max(stand.shape.gpu_milli, stand.shape.cpus_milli))
        best = (self._lacking(), [list(stand.places) for stand in self.stands])
        for order in (self.stands, by_size, self.stands[::-1]):
            self._clear()
            for stand in order:
                self._choose(stand)
            best = min(best, (self._lacking(), [list(stand.places) for stand in self.stands]), key=itemgetter(0))
            if not best[0]:
                return
        self._clear()
        for stand, places in zip(self.stands, best[1], strict=True):
            for place in places:
                self.keep(stand, place)

    def _clear(self) -> None:
        for stand in self.stands:
            for place in list(stand.places):
                self._drop(stand, place)

    def _is_broken(self, place: Lease, touched: set[int]) -> bool:
        """True if a card of a place takes no work any more."""
        if self.grid.number[place.node] not in touched:
            return False
        cards = [self.grid.card(share.device_uuid) for share in place.shares]
        return any(card is None or self.grid.kind[card] < 0 for card in cards)

    def make_way(self, stand: Stand, lease: Lease, number: int) -> None:
        """Keep less for a reservation, one attempt of which has started on a node."""
        here = [place for place in stand.places if place.node == lease.node]
        here.sort(key=lambda place: _cards(place) != _cards(lease))
        for place in (here + [place for place in reversed(stand.places) if place not in here])[: max(0, stand.excess)]:
            self._drop(stand, place)
        if self.line.short(number):
            for place in [place for place in stand.places if place.node == lease.node]:
                self._drop(stand, place)
            self._put(stand, number, -stand.excess)
            self._choose(stand)

    def _choose(self, stand: Stand) -> None:
        """Choose places for those that are missing: as many as are free now, then as many as will be."""
        missing = -stand.excess
        if missing <= 0:
            return
        nodes = everywhere(self.grid)
        room = self.line.room(stand.instants)
        then = times_in(self.grid, stand.shape, nodes, room)
        at_once = np.minimum(then, times_in(self.grid, stand.shape, nodes, np.minimum(room, self.line.room([0]))))
        for most in (at_once, then - at_once):
            while missing > 0 and most.any():
                number = _fewest_nodes(most, missing)
                placed = self._put(stand, number, min(missing, int(most[number])))
                missing -= placed
                most[number] = 0

    def _put(self, stand: Stand, number: int, most: int) -> int:
        """Put up to so many places on a node; how many fitted."""
        nodes = np.array([number])
        for placed in range(most):
            room = self.line.room(stand.instants, nodes)
            if not fits_in(self.grid, stand.shape, nodes, room)[0]:
                return placed
            cards = pick_cards(self.grid, stand.shape, number, room[0])
            attempt = f"{stand.reservation.id}/{len(stand.places)}"
            self.keep(stand, self.grid.lease(stand.shape, number, cards, attempt, self.line.times[0]))
        return max(0, most)

    def keep(self, stand: Stand, place: Lease) -> None:
        """Put a place that is known to be there."""
        stand.places.append(place)
        self._load(stand, place, 1)

    def _drop(self, stand: Stand, place: Lease) -> None:
        stand.places.remove(place)
        self._load(stand, place, -1)

    def _load(self, stand: Stand, place: Lease, sign: int) -> None:
        number = self.grid.number.get(place.node)
        if number is not None:
            self.line.load[stand.instants, number] += sign * row_of(self.grid, place)
            self._changed(number)
            self.grid.touch(number)


def _fewest_nodes(most: Ints, missing: int) -> int:
    """The node that takes all that is missing and least beside; where none does, the one that takes most."""
    enough = np.flatnonzero(most >= missing)
    if len(enough):
        return int(enough[np.argmin(most[enough])])
    return int(np.argmax(most))


def _cards(lease: Lease) -> set[str]:
    return {share.device_uuid for share in lease.shares}


def places_of(grid: Grid, lease: Lease, shape: Shape) -> float:
    """How many places of a shape a lease takes."""
    cards = 0.0
    for share in lease.shares:
        at = grid.card(share.device_uuid)
        need = NEVER if at is None else int(shape.need_mib[grid.kind[at]])
        cards += share.memory_mib / need if 0 < need < NEVER else 1.0
    return max(
        lease.cpus_milli / max(1, shape.cpus_milli),
        lease.memory_mib / max(1, shape.memory_mib),
        cards / shape.cards if shape.cards else 0.0,
    )


def likeness(shape: Shape, place: Shape) -> float:
    """How many places a shape takes, as far as it is known before it has one; of its own shape just one."""
    if shape is place:
        return 1.0
    return 0.01 + max(
        shape.cpus_milli / max(1, place.cpus_milli),
        shape.memory_mib / max(1, place.memory_mib),
        shape.gpu_milli / max(1, place.gpu_milli),
    )
