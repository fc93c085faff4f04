"""Reservations."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GPUS, NOW, clusters

from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons import Reason, refusals
from commonage.domain.requests import Request
from commonage.domain.tenants import Reservation
from commonage.scheduler.backfill.reservations import ReservedCapacity, feasible
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import POLICIES
from commonage.testing import factories
from commonage.testing.factories import node_key

HOUR = 3600.0
GIB = 1024
NUMBERS = count()


class World:
    """A small pass: starts what it is asked to, where reservations let it, in the order of arrival."""

    def __init__(self, nodes: list[Node], policy: str = "best-fit") -> None:
        self.grid = Grid(nodes)
        self.allocations = AllocationTable(self.grid)
        self.now = NOW
        self.reservations: list[Reservation] = []
        self.reserved = ReservedCapacity(self.grid, self.allocations, (), NOW)
        self.policy = POLICIES[policy](self.grid, WorkloadMix(), 1)

    def reserve(self, wanted: Reservation) -> Reason | None:
        refused = feasible(self.grid, self.allocations, self.reservations, wanted, self.now)
        if refused is None:
            self.reservations.append(wanted)
            self.reserved.update(self.reservations, self.now)
        return refused

    def until(self, now: float) -> None:
        self.now = now
        for allocated in list(self.allocations):
            if allocated.ends_at is not None and allocated.ends_at <= now:
                self.end(allocated)
        self.reserved.update(self.reservations, now)

    def end(self, allocated: AllocatedRequest) -> None:
        self.grid.give(allocated.allocation)
        self.allocations.give(allocated.allocation.attempt_id)
        self.reserved.give(allocated)

    def start(
        self, request: Request, tenant: str = "other", limit: float | None = None, owner: str = "bob"
    ) -> AllocatedRequest | None:
        number = next(NUMBERS)
        limit_s = None if limit is None else int(limit)
        queued = QueuedRequest(f"w{number}", request, 0, self.now, limit_s, owner, tenant)
        shape = self.grid.shape(request)
        allowed, own_nodes = self.reserved.open_nodes(queued, shape), self.reserved.own_nodes(queued, shape)
        costs = self.policy.costs(shape)
        costs = costs if allowed is None else np.where(allowed, costs, np.inf)
        if own_nodes is not None and np.isfinite(costs[own_nodes]).any():
            costs = np.where(own_nodes, costs, np.inf)
        if not np.isfinite(costs).any():
            return None
        node = int(np.argmin(costs))
        devices = self.reserved.devices(queued, shape, node)
        if devices is None:
            with self.reserved.without_reserved(queued, shape, node):
                devices = self.policy.devices(shape, node)
        allocation = self.grid.allocation(shape, node, devices, queued.attempt_id, self.now)
        ends_at = None if limit is None else self.now + limit
        allocated = AllocatedRequest(allocation, queued.workload_id, "", queued.owner, "job", ends_at, queued.tenant)
        self.grid.take(allocation)
        self.allocations.take(allocated)
        self.reserved.take(allocated)
        return allocated

    def start_all(self, wanted: Reservation) -> int:
        """How many of a reservation's places start now."""
        limit = wanted.ends_at - self.now
        started = [self.start(wanted.request, wanted.tenant, limit, wanted.owner or "ann") for _ in range(wanted.count)]
        return sum(allocated is not None for allocated in started)


def course(count: int, gpus: str | None = "4GiB", **fields: object) -> Reservation:
    base = Reservation("r1", "course", NOW + HOUR, NOW + 3 * HOUR, factories.request(gpus=gpus), count)
    return replace(base, **fields)  # type: ignore[arg-type]  # fields of Reservation


def two_devices() -> World:
    return World([factories.node("n1", 2, cpus_milli=32000)])


def test_endless_workload_must_fit_next_to_the_reservation() -> None:
    world = two_devices()
    assert world.reserve(course(6)) is None
    assert world.start(factories.request(gpus="1")) is not None
    assert world.start(factories.request(gpus="1")) is None
    assert world.start(factories.request(gpus="1"), limit=HOUR) is not None
    assert world.start(factories.request(gpus="4GiB"), limit=HOUR) is None


def test_all_places_start_when_the_window_begins() -> None:
    world = two_devices()
    assert world.reserve(course(12)) is None
    assert world.start(factories.request(gpus="1"), limit=HOUR) is not None
    assert world.start(factories.request(gpus="1"), limit=HOUR / 2) is not None
    world.until(NOW + HOUR)
    assert world.start(factories.request(gpus="1GiB")) is None
    assert world.start_all(course(12)) == 12
    assert len(world.reserved.counted) == 12


def test_only_tenant_or_owner_may_use_places_within_the_window() -> None:
    world = two_devices()
    assert world.reserve(course(12, owner="ann")) is None
    assert world.start(factories.request(gpus="4GiB"), "course", owner="ann") is None
    world.until(NOW + HOUR)
    assert world.start(factories.request(gpus="4GiB"), "course", HOUR, "bob") is None
    assert world.start(factories.request(gpus="4GiB"), "other", HOUR, "ann") is None
    assert world.start(factories.request(gpus="4GiB"), "course", HOUR, "ann") is not None


def test_used_place_is_reserved_again_until_the_window_ends() -> None:
    world = two_devices()
    assert world.reserve(course(12)) is None
    world.until(NOW + HOUR)
    allocated = world.start(factories.request(gpus="4GiB"), "course", 2 * HOUR)
    assert allocated is not None
    assert len(world.reserved.places("r1")) == 11
    world.end(allocated)
    world.until(NOW + 2 * HOUR)
    assert len(world.reserved.places("r1")) == 12
    assert world.start(factories.request(gpus="1GiB")) is None
    world.until(NOW + 3 * HOUR)
    assert world.start(factories.request(gpus="1")) is not None


def test_larger_and_smaller_workloads_take_proportional_places() -> None:
    world = two_devices()
    assert world.reserve(course(6)) is None
    world.until(NOW + HOUR)
    assert world.start(factories.request(gpus="8GiB"), "course", HOUR) is not None
    assert len(world.reserved.places("r1")) == 4
    assert world.start(factories.request(gpus="2GiB"), "course", HOUR) is not None
    assert len(world.reserved.places("r1")) == 3


def test_reservations_do_not_share_places() -> None:
    world = World([factories.node("n1", 1, cpus_milli=32000)])
    assert world.reserve(course(3)) is None
    assert world.reserve(course(3, id="r2", tenant="lecture")) is None
    world.until(NOW + HOUR)
    assert world.start(factories.request(gpus="16GiB"), "course", HOUR) is None
    assert world.start(factories.request(gpus="12GiB"), "course", HOUR) is not None
    assert world.start_all(course(3, id="r2", tenant="lecture")) == 3


def test_own_nodes_are_those_with_sufficient_places() -> None:
    world = two_devices()
    assert world.reserve(course(1)) is None
    queued = QueuedRequest("w", factories.request(gpus="4GiB"), 0, NOW, 60, "ann", "course")
    more = replace(queued, request=factories.request(gpus="8GiB"))
    shape, larger = world.grid.shape(queued.request), world.grid.shape(more.request)
    assert world.reserved.own_nodes(queued, shape) is None
    world.until(NOW + HOUR)
    own_nodes, devices = world.reserved.own_nodes(queued, shape), world.reserved.devices(queued, shape, 0)
    assert own_nodes is not None
    assert own_nodes.all()
    assert devices is not None
    assert len(devices) == 1
    assert world.reserved.own_nodes(more, larger) is None
    assert world.reserved.devices(more, larger, 0) is None


def test_places_prefer_free_nodes_and_stay() -> None:
    world = World([factories.node("n1", 2), factories.node("n2", 2)])
    assert world.start(factories.request(gpus="2"), limit=HOUR / 2) is not None
    assert world.reserve(course(2, "1")) is None
    assert {place.node for place in world.reserved.places("r1")} == {"n2"}
    world.until(NOW + HOUR / 2)
    world.reserved.update(world.reservations, world.now)
    assert {place.node for place in world.reserved.places("r1")} == {"n2"}


def test_places_move_from_a_draining_node() -> None:
    world = World([factories.node("n1", 1), factories.node("n2", 1)])
    assert world.reserve(course(1, "1")) is None
    gone = world.reserved.places("r1")[0].node
    world.grid.put([replace(world.grid.nodes[world.grid.number[node_key(gone)]], state=NodeState.DRAINING)])
    world.until(NOW + 1)
    assert [place.node for place in world.reserved.places("r1")] == [{"n1": "n2", "n2": "n1"}[gone]]


def test_infeasible_reservation_has_a_reason_with_numbers() -> None:
    world = two_devices()
    request = str(course(1).request)
    assert world.reserve(course(13)) == refusals.ReservationTooLarge(count=13, request=request, room=12)
    assert world.start(factories.request(gpus="1")) is not None
    assert world.reserve(course(12)) == refusals.ReservationBlocked(
        count=12, request=request, places=6, workloads=1, endless=1
    )
    assert world.reserve(course(6)) is None
    refused = world.reserve(course(1, id="r2", starts_at=NOW + 2 * HOUR, ends_at=NOW + 4 * HOUR))
    assert refused is not None
    assert world.reserve(course(6, id="r3", starts_at=NOW + 3 * HOUR, ends_at=NOW + 4 * HOUR)) is None


def test_lost_device_causes_a_shortfall() -> None:
    world = two_devices()
    assert world.reserve(course(12)) is None
    node = world.grid.nodes[0]
    sick = replace(node.report.devices[0], faults=("it fell off the bus",))
    world.grid.put([replace(node, report=replace(node.report, devices=(sick, node.report.devices[1])))])
    world.until(NOW + 1)
    assert world.reserved.missing("r1") == 6
    found = world.reserved.shortfall("r1")
    assert isinstance(found, refusals.ReservationTooLarge)
    assert (found.count, found.room) == (12, 6)


def test_no_mask_without_reservations() -> None:
    world = two_devices()
    queued = QueuedRequest("w", factories.request(), 0, NOW)
    assert world.reserved.open_nodes(queued, world.grid.shape(queued.request)) is None
    assert world.reserved.unreserved(queued, world.grid.shape(queued.request)) is None
    assert world.reserved.own_nodes(queued, world.grid.shape(queued.request)) is None


REQUESTS = st.builds(Request, st.sampled_from([500, 1000]), st.sampled_from([GIB, 2 * GIB]), GPUS)
RESERVATIONS = st.tuples(REQUESTS, st.integers(1, 6), st.integers(0, 4), st.integers(1, 4), st.sampled_from("xy"))
MOVES = st.lists(
    st.tuples(REQUESTS, st.sampled_from([None, 1, 2, 4]), st.sampled_from(["x", "y", "other"]), st.integers(0, 3)),
    min_size=1,
    max_size=20,
)


STOPS = st.lists(RESERVATIONS, min_size=1, max_size=3)
Desired = tuple[Request, int, int, int, str]
Move = tuple[Request, int | None, str, int]


@given(clusters(), STOPS, MOVES, st.sampled_from(["best-fit", "spread", "expected-waste"]))
def test_all_places_start_at_the_beginning_whatever_ran_before(
    nodes: list[Node], stops: list[Desired], moves: list[Move], policy: str
) -> None:
    world = World(nodes, policy)
    arrivals = iter(moves)
    for hour in range(6):
        for wanted in world.reservations:
            if wanted.starts_at == world.now:
                assert world.start_all(wanted) == wanted.count
        if hour < len(stops):
            request, places, begin, length, tenant = stops[hour]
            start = world.now + (1 + begin) * HOUR
            world.reserve(Reservation(f"r{hour}", tenant, start, start + length * HOUR, request, places))
        for request, limit, tenant, ends in [move for move, _ in zip(arrivals, range(4), strict=False)]:
            world.start(request, tenant, None if limit is None else limit * HOUR)
            for allocated in list(world.allocations)[:1] if ends == 0 else []:
                world.end(allocated)
                world.reserved.update(world.reservations, world.now)
            assert all(state.excess >= 0 for state in world.reserved._places.states.values())
        world.until(world.now + HOUR)


ONE_CORE = [factories.node("n1", 0, cpus_milli=1000)]
HALF_A_CORE = Request(500, GIB, None)


@given(clusters(), STOPS, MOVES)
@example(ONE_CORE, [(HALF_A_CORE, 1, 0, 1, "x")] * 2, [(HALF_A_CORE, None, "x", 0)])
def test_incremental_updates_equal_a_rebuild(nodes: list[Node], stops: list[Desired], moves: list[Move]) -> None:
    world = World(nodes)
    for number, (request, places, begin, length, tenant) in enumerate(stops):
        start = NOW + begin * HOUR
        world.reserve(Reservation(f"r{number}", tenant, start, start + length * HOUR, request, places))
    for request, limit, tenant, _ in moves:
        world.start(request, tenant, None if limit is None else limit * HOUR)
    kept = world.reserved
    sorts = [(request, limit, tenant) for request, *_ in stops for limit in (None, 3600, 9000) for tenant in "xy"]
    queued_requests = [QueuedRequest("w", request, 0, NOW, limit, "bob", tenant) for request, limit, tenant in sorts]
    seen = [kept.open_nodes(queued, world.grid.shape(queued.request)) for queued in queued_requests]
    kept._places.renumber()
    kept._reset_usage()
    for queued, before in zip(queued_requests, seen, strict=True):
        now = kept.open_nodes(queued, world.grid.shape(queued.request))
        assert (before is None) == (now is None)
        assert before is None or now is None or np.array_equal(before, now)
