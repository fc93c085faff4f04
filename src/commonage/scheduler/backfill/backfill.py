"""Backfill: decides which requests may start while others wait longer, so that no later request delays an earlier one.

The first waiting requests get a promise: the earliest start that time limits allow, as a claim on capacity (claims.py).
A later request may start on such a node if it ends before the claim, or fits next to it. Behind the promises a stricter
rule protects waiting requests: on a node that one of them could use, only a request that ends before any current
allocation there may start. If no start can be promised, a node is reserved for the head of the queue after
`head_of_queue_timeout_s`. Reservations of tenants are in reservations.py.

Called by the pass, and by explanations for the same answers. One promise: EASY backfill (Lifka 1995); many promises:
conservative backfill (Mu'alem and Feitelson 2001).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonage.domain.nodes import Allocation
from commonage.domain.tenants import Reservation
from commonage.scheduler.backfill.claims import AvailabilityProfiles, CapacityClaim, CapacityClaims
from commonage.scheduler.backfill.reservations import ReservedCapacity
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import NEVER, AllocatedRequest, Bools, Floats, Ints, QueuedRequest, Shape
from commonage.scheduler.model.space import combinable_devices, fits_in, free_rows, pick_devices, row_of

MAX_PROMISES = 16
"""Requests, from the front, that get a promise. More promises backfill slightly more work, but slow down each pass.
Requests behind them are not delayed, because the rule for protected nodes is stricter.
"""
ROUNDING_S = 1e-3  # tolerance when times and durations are added


@dataclass(frozen=True, slots=True)
class Promise:
    """The promised start of a request or gang, at `at` at the latest; None: when enough has ended on its nodes."""

    workload_id: str
    at: float | None
    allocations: tuple[Allocation, ...]


PossibleStart = tuple[float, list[int]]  # A start time, and the node of each member of a gang


class Backfill:
    def __init__(
        self,
        grid: Grid,
        profiles: AvailabilityProfiles,
        reserved: ReservedCapacity,
        reservations: Sequence[Reservation],
        now: float,
    ) -> None:
        self.now = now
        self._grid, self._profiles, self._reserved = grid, profiles, reserved
        self._reservations = reservations
        self.claims = CapacityClaims(grid, profiles, now)
        self.protected: Bools = np.zeros(len(grid.nodes), np.bool_)
        for number, reservation, (begins, ends), row in reserved.windows():
            self.claims.add(number, row, CapacityClaim(max(begins, now), ends, reservation))

    def exempt(self, queued: QueuedRequest) -> tuple[str, ...]:
        """The reservations that the request may use; their capacity does not block it."""
        return tuple(
            reservation.id
            for reservation in self._reservations
            if reservation.starts_at <= self.now
            and reservation.tenant == queued.tenant
            and reservation.owner in (None, queued.owner)
        )

    # --- now ------------------------------------------------------------------------------------------------------

    def startable_nodes(self, queued: QueuedRequest, shape: Shape, fit: Bools) -> Bools:
        """[N]: the nodes, of those in `fit`, on which the request may start now without delaying earlier ones."""
        own_nodes = self._reserved.own_nodes(queued, shape)
        not_reserved = self._reserved.open_nodes(queued, shape)
        if own_nodes is not None and np.count_nonzero(fit & own_nodes) >= queued.gang_size:
            # Earlier requests do not matter: no other request could use this capacity.
            return fit & own_nodes if not_reserved is None else fit & own_nodes & not_reserved
        allowed = fit.copy()
        if not_reserved is not None:
            allowed &= not_reserved
        if self.protected.any():
            allowed &= ~self.protected | (self.end_if_started(queued) <= self._profiles.first_ends())
        claimed = [number for number in self.claims.nodes if allowed[number]]
        if claimed:
            allowed[claimed] = self._fits_next_to_claims(queued, shape, np.array(claimed))
        return allowed

    def latest_end(self, queued: QueuedRequest, shape: Shape, fit: Bools) -> float:
        """The latest end with which an equal request could start now; -inf: none could.

        The refusal of a long run holds for every request that runs as long, so the pass skips those.
        """
        if self._reservations:  # reservations differ by request: only an equal run is sure to fail
            return self.end_if_started(queued) - ROUNDING_S
        ends = np.where(self.protected, self._profiles.first_ends(), np.inf)
        ends[~fit] = -np.inf
        claimed = [number for number in self.claims.nodes if fit[number]]
        bounds = ends[claimed]
        ends[claimed] = -np.inf
        latest_end = float(ends.max(initial=-np.inf))
        for number, bound in zip(claimed, bounds.tolist(), strict=True):
            if bound > latest_end:
                latest_end = max(latest_end, min(bound, self.claims.latest(shape, number)))
        return latest_end + ROUNDING_S

    def devices(self, queued: QueuedRequest, shape: Shape, number: int) -> Sequence[int] | None:
        """The devices for a request on a node with claims; None without claims: the policy chooses."""
        within = self._reserved.devices(queued, shape, number)
        if within is not None or number not in self.claims.nodes:
            return within
        with self._reserved.without_reserved(queued, shape, number):
            return pick_devices(self._grid, shape, number, self.claims.room(number, self.end_if_started(queued)))

    def end_if_started(self, queued: QueuedRequest) -> float:
        """The end of the request if it starts now; inf without a time limit."""
        return np.inf if queued.time_limit_s is None else self.now + queued.time_limit_s

    def _fits_next_to_claims(self, queued: QueuedRequest, shape: Shape, nodes: Ints) -> Bools:
        if not self._reservations:
            return fits_in(self._grid, shape, nodes, self.claims.rooms(nodes, self.end_if_started(queued)))
        fit = np.zeros(len(nodes), np.bool_)
        for index, number in enumerate(nodes.tolist()):
            with self._reserved.without_reserved(queued, shape, number):
                room = self.claims.room(number, self.end_if_started(queued))
                fit[index] = fits_in(self._grid, shape, nodes[index : index + 1], room[None])[0]
        return fit

    # --- later ----------------------------------------------------------------------------------------------------

    def protect(self, nodes: Bools) -> None:
        self.protected |= nodes

    def promise(self, queued_requests: Sequence[QueuedRequest], shape: Shape, earliest_start: PossibleStart) -> Promise:
        queued, exempt, (at, nodes) = queued_requests[0], self.exempt(queued_requests[0]), earliest_start
        length = _duration_s(queued)
        rows = [self.claims.between(number, at, at + length, exempt) for number in nodes]
        return self._claim(queued_requests, shape, earliest_start, rows)

    def promise_after_eviction(
        self,
        queued_requests: Sequence[QueuedRequest],
        shape: Shape,
        nodes: Sequence[int],
        victims: Sequence[AllocatedRequest],
    ) -> Promise:
        """Claim the nodes on which victims are evicted, so that no other workload takes them."""
        rows = [free_rows(self._grid, np.array([number]))[0] for number in nodes]
        for index, number in enumerate(nodes):
            for victim in victims:
                if victim.allocation.node_key == self._grid.nodes[number].key:
                    rows[index] = rows[index] + row_of(self._grid, victim.allocation)
        return self._claim(queued_requests, shape, (self.now, list(nodes)), rows)

    def _claim(
        self,
        queued_requests: Sequence[QueuedRequest],
        shape: Shape,
        earliest_start: PossibleStart,
        rows: Sequence[Ints],
    ) -> Promise:
        (at, nodes), allocations = earliest_start, []
        for member, number, row in zip(queued_requests, nodes, rows, strict=True):
            devices = pick_devices(self._grid, shape, number, row)
            allocations.append(self._grid.allocation(shape, number, devices, member.attempt_id, at))
        for allocation in allocations:
            self.claims.promise(allocation, at, at + _duration_s(queued_requests[0]))
        return Promise(queued_requests[0].workload_id, at, tuple(allocations))

    def earliest_start(
        self, queued_requests: Sequence[QueuedRequest], shape: Shape, allowed: Bools | None = None
    ) -> PossibleStart | None:
        """The earliest time at which all members fit on `allowed` [N] nodes, and their nodes; None if unknown."""
        count, length, exempt = len(queued_requests), _duration_s(queued_requests[0]), self.exempt(queued_requests[0])
        if count > len(self._grid.nodes):
            return None
        earliest: Floats = np.maximum(self._profiles.earliest(shape), self.now)
        if allowed is not None:
            earliest = np.where(allowed, earliest, np.inf)
        known = np.zeros(len(earliest), np.bool_)
        claimed = [number for number in self.claims.nodes if np.isfinite(earliest[number])]
        known[claimed] = True
        earliest = earliest.copy()
        while True:  # claims only delay: evaluate them only for the earliest nodes
            first = np.argsort(earliest, kind="stable")[:count] if count > 1 else np.argmin(earliest, keepdims=True)
            if len(first) < count or not np.isfinite(earliest[first[-1]]):
                return None
            unchecked = [number for number in first.tolist() if known[number]]
            if not unchecked:
                break
            for number in unchecked:
                earliest[number] = self.claims.earliest(shape, number, length, exempt)
                known[number] = False
        at = float(earliest[first[-1]])
        if count > 1:
            return self._earliest_for_gang(shape, (count, at, length), exempt, earliest)
        return at, first.tolist()

    def preemptible_nodes(self, queued: QueuedRequest, shape: Shape) -> Bools:
        """[N]: the nodes without claims and without capacity reserved for others: where the request may preempt."""
        unreserved = self._reserved.unreserved(queued, shape)
        nodes = np.ones(len(self._grid.nodes), np.bool_) if unreserved is None else unreserved
        nodes[self.claims.nodes] = False
        return nodes

    def _earliest_for_gang(
        self, shape: Shape, wanted: tuple[int, float, float], exempt: tuple[str, ...], earliest: Floats
    ) -> PossibleStart | None:
        """The earliest common start of a gang: because of claims, a node may be full again when others are free."""
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

    def reserve_node(self, queued_requests: Sequence[QueuedRequest], shape: Shape, could: Bools) -> Promise | None:
        """Reserve the nodes on which least must end before the members fit; `could` [N]: they fit there when empty."""
        nodes = [number for number in np.flatnonzero(could).tolist() if not self.claims.is_reserved_for_head(number)]
        if len(nodes) < len(queued_requests):
            return None
        missing = self._missing(shape, np.array(nodes))
        allocations = []
        for member, index in zip(queued_requests, np.argsort(missing, kind="stable").tolist(), strict=False):
            number = nodes[index]
            devices = _least_missing(self._grid, shape, number)
            allocation = self._grid.allocation(shape, number, devices, member.attempt_id, self.now)
            spare = self._room_without(number, allocation) - row_of(self._grid, allocation)
            self.claims.reserve_for_head(number, spare)
            allocations.append(allocation)
        return Promise(queued_requests[0].workload_id, None, tuple(allocations))

    def _missing(self, shape: Shape, nodes: Ints) -> Floats:
        """[n]: how much must end before the shape fits, in parts of a node plus devices."""
        grid = self._grid
        cpus = np.maximum(0, shape.cpus_milli - grid.cpus[nodes]) / np.maximum(1, grid.cpus_total[nodes])
        memory = np.maximum(0, shape.memory_mib - grid.memory[nodes]) / np.maximum(1, grid.memory_total[nodes])
        if not shape.devices:
            return np.asarray(cpus + memory, np.float64)
        devices = np.array(
            [_missing_parts(grid, shape, number)[_least_missing(grid, shape, number)].sum() for number in nodes]
        )
        return np.asarray(cpus + memory + devices, np.float64)

    def _room_without(self, number: int, allocation: Allocation) -> Ints:
        """[W]: the free row after the workloads on its devices have ended, and others as needed."""
        grid = self._grid
        room: Ints = free_rows(grid, np.array([number]))[0]
        wanted = row_of(grid, allocation)
        holding = sorted(grid.allocated_on(number), key=lambda allocated: (-allocated.at, allocated.attempt_id))
        for whole in (True, False):
            for allocated in list(holding):
                row = row_of(grid, allocated)
                if (room >= wanted).all():
                    return room
                short = room < wanted
                if (row[short] > 0).any() and (not whole or (row[2:] * short[2:]).any()):
                    room = room + row
                    holding.remove(allocated)
        return room


def _duration_s(queued: QueuedRequest) -> float:
    return np.inf if queued.time_limit_s is None else float(queued.time_limit_s)


def _missing_parts(grid: Grid, shape: Shape, number: int) -> Floats:
    """[C]: the part of each device that must be freed; inf if the device does not match."""
    kind = grid.kind[number]
    need_mib, need_milli = shape.need_mib[kind], shape.need_milli[kind]
    mib = np.maximum(0, need_mib - grid.free_mib[number]) / np.maximum(1, grid.total_mib[number])
    milli = np.maximum(0, need_milli - grid.free_milli[number]) / 1000
    short: Floats = np.where(need_mib >= NEVER, np.inf, np.maximum(mib, milli))
    return short


def _least_missing(grid: Grid, shape: Shape, number: int) -> list[int]:
    """The devices of a node on which least must be freed."""
    if not shape.devices:
        return []
    short = _missing_parts(grid, shape, number)
    groups = combinable_devices(grid, shape, number)
    chosen = [group[np.argsort(short[group], kind="stable")[: shape.devices]] for group in groups]
    enough = [devices for devices in chosen if len(devices) == shape.devices]
    best: list[int] = min(enough, key=lambda devices: float(short[devices].sum())).tolist()
    return best
