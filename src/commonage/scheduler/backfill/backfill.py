"""Decides what may start while others wait longer, and when those start: a later request never delays an earlier one.

The first requests that wait for room are promised the earliest place and time that time limits tell (`CapacityClaims`).
A
request behind them may start there if it ends in time or fits next to the claim. For requests further back a safe rule
holds: on a node that one of them could use, only what ends before anything else there ends may start; until then no
waiting request can start there. Where time limits tell nothing, a node is kept for the first request that has waited
long. Reservations are handled in reservations.py.

Called by the pass, and by explanations for the same answers. Backfill around the reservation of the first: EASY (Lifka
1995); around those of many: conservative backfill (Mu'alem and Feitelson 2001).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonage.domain.nodes import Allocation
from commonage.domain.tenants import Reservation
from commonage.scheduler.backfill.availability import AvailabilityProfiles
from commonage.scheduler.backfill.claims import CapacityClaim, CapacityClaims
from commonage.scheduler.backfill.reservations import ReservedCapacity
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.queued_requests import Held, QueuedRequest
from commonage.scheduler.model.shapes import NEVER, Bools, Floats, Ints, Shape
from commonage.scheduler.model.space import fits_in, free_rows, pick_devices, row_of

MOST_PROMISES = 16
"""The number of queued requests, from the front, that get a place and a time. More would backfill slightly more work
and cost more time in each pass; requests behind are no worse off, because the safe rule is stricter.
"""
ROUNDING_S = 1e-3  # precision of sums of instants and durations


@dataclass(frozen=True, slots=True)
class Promise:
    """`allocations`, one for each member of a gang, start at `at` at the latest; None: once enough has ended there."""

    workload_id: str
    at: float | None
    allocations: tuple[Allocation, ...]


When = tuple[float, list[int]]
"""An instant, and the numbers of the nodes that have room then, one for each workload that starts together."""


class Backfill:
    """Decides what may start on which node within one pass."""

    def __init__(
        self,
        grid: Grid,
        profiles: AvailabilityProfiles,
        kept: ReservedCapacity,
        reservations: Sequence[Reservation],
        now: float,
    ) -> None:
        self.now = now
        self._grid, self._profiles, self._reserved = grid, profiles, kept
        self._reservations = reservations
        self.claims = CapacityClaims(grid, profiles, now)
        self.guarded: Bools = np.zeros(len(grid.nodes), np.bool_)
        for number, reservation, (begins, ends), row in kept.windows():
            self.claims.add(number, row, CapacityClaim(max(begins, now), ends, reservation))

    def exempt(self, queued: QueuedRequest) -> tuple[str, ...]:
        """The reservations that keep room for this request; their room does not block it."""
        return tuple(
            one.id
            for one in self._reservations
            if one.starts_at <= self.now and one.tenant == queued.tenant and one.owner in (None, queued.owner)
        )

    # --- now ------------------------------------------------------------------------------------------------------

    def mask(self, queued: QueuedRequest, shape: Shape, fit: Bools) -> Bools:
        """[N]: the nodes, of those on which it fits, where it may start now, including room kept for it."""
        home = self._reserved.home(queued, shape)
        kept = self._reserved.mask(queued, shape)
        if home is not None and np.count_nonzero(fit & home) >= queued.gang_size:
            return fit & home if kept is None else fit & home & kept  # nobody who waits longer could use that room
        allowed = fit.copy()
        if kept is not None:
            allowed &= kept
        if self.guarded.any():
            allowed &= ~self.guarded | (self.until(queued) <= self._profiles.first_ends())
        claimed = [number for number in self.claims.nodes if allowed[number]]
        if claimed:
            allowed[claimed] = self._fits_beside(queued, shape, np.array(claimed))
        return allowed

    def latest(self, queued: QueuedRequest, shape: Shape, fit: Bools) -> float:
        """The latest end that something like the request may have if it starts now; -inf: it cannot start at all.

        A refusal because of a long run applies to every request that runs as long: there is no need to try those.
        """
        if self._reservations:  # each affects requests differently: only the same length is sure to fail
            return self.until(queued) - ROUNDING_S
        ends = np.where(self.guarded, self._profiles.first_ends(), np.inf)
        ends[~fit] = -np.inf
        special = [number for number in self.claims.nodes if fit[number]]
        bounds = ends[special]
        ends[special] = -np.inf
        latest = float(ends.max(initial=-np.inf))
        for number, bound in zip(special, bounds.tolist(), strict=True):
            if bound > latest:
                latest = max(latest, min(bound, self.claims.latest(shape, number)))
        return latest + ROUNDING_S

    def devices(self, queued: QueuedRequest, shape: Shape, number: int) -> Sequence[int] | None:
        """The devices for a request on a node with claims; None without claims: any device will do."""
        within = self._reserved.devices(queued, shape, number)
        if within is not None or number not in self.claims.nodes:
            return within
        with self._reserved.aside(queued, shape, number):
            return pick_devices(self._grid, shape, number, self.claims.room(number, self.until(queued)))

    def until(self, queued: QueuedRequest) -> float:
        """Its end if it starts now; inf without a time limit."""
        return np.inf if queued.time_limit_s is None else self.now + queued.time_limit_s

    def _fits_beside(self, queued: QueuedRequest, shape: Shape, nodes: Ints) -> Bools:
        """[n]: on which of these nodes it fits next to the claims."""
        if not self._reservations:
            return fits_in(self._grid, shape, nodes, self.claims.rooms(nodes, self.until(queued)))
        fit = np.zeros(len(nodes), np.bool_)
        for index, number in enumerate(nodes.tolist()):
            with self._reserved.aside(queued, shape, number):
                room = self.claims.room(number, self.until(queued))
                fit[index] = fits_in(self._grid, shape, nodes[index : index + 1], room[None])[0]
        return fit

    # --- later ----------------------------------------------------------------------------------------------------

    def guard(self, nodes: Bools) -> None:
        """Mark nodes that a waiting request could use: from now on only what cannot delay it starts there."""
        self.guarded |= nodes

    def promise(self, queued_requests: Sequence[QueuedRequest], shape: Shape, when: When) -> Promise:
        """Promise the request, or all of its gang, the time and the nodes that `when` found."""
        queued, exempt, (at, nodes) = queued_requests[0], self.exempt(queued_requests[0]), when
        length = _length(queued)
        rows = [self.claims.between(number, at, at + length, exempt) for number in nodes]
        return self._claim(queued_requests, shape, when, rows)

    def make_room(
        self, queued_requests: Sequence[QueuedRequest], shape: Shape, nodes: Sequence[int], victims: Sequence[Held]
    ) -> Promise:
        """Promise the nodes on which victims are evicted, from now on, so that no other workload takes them."""
        rows = [free_rows(self._grid, np.array([number]))[0] for number in nodes]
        for index, number in enumerate(nodes):
            for one in victims:
                if one.allocation.node == self._grid.nodes[number].name:
                    rows[index] = rows[index] + row_of(self._grid, one.allocation)
        return self._claim(queued_requests, shape, (self.now, list(nodes)), rows)

    def _claim(
        self, queued_requests: Sequence[QueuedRequest], shape: Shape, when: When, rows: Sequence[Ints]
    ) -> Promise:
        (at, nodes), allocations = when, []
        for member, number, row in zip(queued_requests, nodes, rows, strict=True):
            devices = pick_devices(self._grid, shape, number, row)
            allocations.append(self._grid.allocation(shape, number, devices, member.attempt_id, at))
        for allocation in allocations:
            self.claims.promise(allocation, at, at + _length(queued_requests[0]))
        return Promise(queued_requests[0].workload_id, at, tuple(allocations))

    def when(self, queued_requests: Sequence[QueuedRequest], shape: Shape) -> When | None:
        """The earliest time at which a node has room for each, and these nodes; None: unknown."""
        count, length, exempt = len(queued_requests), _length(queued_requests[0]), self.exempt(queued_requests[0])
        if count > len(self._grid.nodes):
            return None
        earliest: Floats = np.maximum(self._profiles.earliest(shape), self.now)
        known = np.zeros(len(earliest), np.bool_)
        special = [number for number in self.claims.nodes if np.isfinite(earliest[number])]
        known[special] = True
        earliest = earliest.copy()
        while True:  # claims only delay, so a node is evaluated with its claims only when it is among the first
            first = np.argsort(earliest, kind="stable")[:count] if count > 1 else np.argmin(earliest, keepdims=True)
            if len(first) < count or not np.isfinite(earliest[first[-1]]):
                return None
            unsure = [number for number in first.tolist() if known[number]]
            if not unsure:
                break
            for number in unsure:
                earliest[number] = self.claims.earliest(shape, number, length, exempt)
                known[number] = False
        at = float(earliest[first[-1]])
        if count > 1:
            return self._together(shape, (count, at, length), exempt, earliest)
        return at, first.tolist()

    def open_to(self, queued: QueuedRequest, shape: Shape) -> Bools:
        """[N]: the nodes without promises or room kept from the request: where others may be evicted for it."""
        clear = self._reserved.clear(queued, shape)
        nodes = np.ones(len(self._grid.nodes), np.bool_) if clear is None else clear
        nodes[self.claims.nodes] = False
        return nodes

    def _together(
        self, shape: Shape, wanted: tuple[int, float, float], exempt: tuple[str, ...], earliest: Floats
    ) -> When | None:
        """For a gang: with later claims, the node that has room first may have none when all the others do."""
        count, at, length = wanted
        for instant in np.unique(earliest[(earliest >= at) & np.isfinite(earliest)]).tolist():
            nodes = []
            for number in np.flatnonzero(earliest <= instant).tolist():
                room = self.claims.between(number, instant, instant + length, exempt)[None]
                if fits_in(self._grid, shape, np.array([number]), room)[0]:
                    nodes.append(number)
                if len(nodes) == count:
                    return float(instant), nodes
        return None

    def keep(self, queued_requests: Sequence[QueuedRequest], shape: Shape, could: Bools) -> Promise | None:
        """Keep the nodes where least must end before the requests fit; `could` [N]: where they fit on empty nodes."""
        nodes = [number for number in np.flatnonzero(could).tolist() if not self.claims.reserved(number)]
        if len(nodes) < len(queued_requests):
            return None
        missing = self._missing(shape, np.array(nodes))
        allocations = []
        for member, index in zip(queued_requests, np.argsort(missing, kind="stable").tolist(), strict=False):
            number = nodes[index]
            devices = _least_missing(self._grid, shape, number)
            allocation = self._grid.allocation(shape, number, devices, member.attempt_id, self.now)
            self.claims.keep(number, self._room_without(number, allocation) - row_of(self._grid, allocation))
            allocations.append(allocation)
        return Promise(queued_requests[0].workload_id, None, tuple(allocations))

    def _missing(self, shape: Shape, nodes: Ints) -> Floats:
        """[n]: how much must end before the shape fits, in parts of a node and in devices."""
        grid = self._grid
        cpus = np.maximum(0, shape.cpus_milli - grid.cpus[nodes]) / np.maximum(1, grid.cpus_total[nodes])
        memory = np.maximum(0, shape.memory_mib - grid.memory[nodes]) / np.maximum(1, grid.memory_total[nodes])
        if not shape.devices:
            return np.asarray(cpus + memory, np.float64)
        devices = np.array([_short(grid, shape, number)[_least_missing(grid, shape, number)].sum() for number in nodes])
        return np.asarray(cpus + memory + devices, np.float64)

    def _room_without(self, number: int, allocation: Allocation) -> Ints:
        """[W]: the free row once the holders of its devices have ended, and as many others as it also needs."""
        grid = self._grid
        room: Ints = free_rows(grid, np.array([number]))[0]
        wanted = row_of(grid, allocation)
        holding = sorted(grid.held_on(number), key=lambda one: (-one.at, one.attempt_id))
        for whole in (True, False):
            for one in list(holding):
                row = row_of(grid, one)
                if (room >= wanted).all():
                    return room
                short = room < wanted
                if (row[short] > 0).any() and (not whole or (row[2:] * short[2:]).any()):
                    room = room + row
                    holding.remove(one)
        return room


def _length(queued: QueuedRequest) -> float:
    return np.inf if queued.time_limit_s is None else float(queued.time_limit_s)


def _short(grid: Grid, shape: Shape, number: int) -> Floats:
    """[C]: how much of each device must be freed, in parts of the device; inf if the device does not match."""
    kind = grid.kind[number]
    need_mib, need_milli = shape.need_mib[kind], shape.need_milli[kind]
    mib = np.maximum(0, need_mib - grid.free_mib[number]) / np.maximum(1, grid.total_mib[number])
    milli = np.maximum(0, need_milli - grid.free_milli[number]) / 1000
    short: Floats = np.where(need_mib >= NEVER, np.inf, np.maximum(mib, milli))
    return short


def _least_missing(grid: Grid, shape: Shape, number: int) -> list[int]:
    """The suitable devices of a node on which least must be freed."""
    if not shape.devices:
        return []
    short = _short(grid, shape, number)
    groups = [np.arange(len(short))]
    if shape.request.one_numa and shape.devices > 1:
        groups = [np.flatnonzero(grid.numa[number] == place) for place in np.unique(grid.numa[number])]
    chosen = [group[np.argsort(short[group], kind="stable")[: shape.devices]] for group in groups]
    enough = [devices for devices in chosen if len(devices) == shape.devices]
    best: list[int] = min(enough, key=lambda devices: float(short[devices].sum())).tolist()
    return best
