"""Preemption: the fewest and least important victims, with a reason, and room afterwards."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB, NOW, clusters

from commonage.domain.nodes import Node
from commonage.domain.reasons import attempts
from commonage.domain.requests import GpuRequest, Request
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.model.space import everywhere, fits_in, free_rows, pick_devices
from commonage.scheduler.preemption.preemption import Preemption, PreemptionProposal
from commonage.scheduler.queue.quota import QuotaAccounts, amounts_of
from commonage.testing import factories

NUMBERS = count()
OLD = NOW - 5000


class World:
    def __init__(self, nodes: list[Node], *tenants: Tenant, spared: tuple[str, ...] = ()) -> None:
        self.grid, self.quotas = Grid(nodes), QuotaAccounts(Rules(tenants))
        self.allocations = AllocationTable(self.grid)
        self.preemption = Preemption(self.grid, self.allocations, self.quotas, 600, spared)

    def allocate(
        self, request: Request, node: int | None = None, at: float = OLD, **fields: object
    ) -> AllocatedRequest | None:
        """Something runs, on the first node that has room, or this one."""
        shape = self.grid.shape(request)
        nodes = everywhere(self.grid) if node is None else np.array([node])
        fit = nodes[self.grid.fits(shape, nodes)]
        if not len(fit):
            return None
        number = int(fit[0])
        devices = pick_devices(self.grid, shape, number, free_rows(self.grid, np.array([number]))[0])
        allocation = self.grid.allocation(shape, number, devices, f"a{next(NUMBERS):04}", at)
        base = AllocatedRequest(allocation, "w", "", "bob", "job", tenant="art", priority=-50, preemptible=True)
        allocated = replace(base, **fields)  # type: ignore[arg-type]  # fields of Held
        self.grid.take(allocation)
        self.allocations.take(allocated)
        self.quotas.take(allocated)
        return allocated

    def evict(
        self, gpus: str | None = None, request: Request | None = None, **fields: object
    ) -> PreemptionProposal | None:
        request = request or factories.request(gpus=gpus)
        base = QueuedRequest("w", request, 0, NOW, owner="alice", tenant="bio", kind="session")
        queued = replace(base, **fields)  # type: ignore[arg-type]  # fields of Ask
        return self.preemption.victims(queued, self.grid.shape(request), NOW)


def gone(eviction: PreemptionProposal | None) -> list[str]:
    assert eviction is not None
    return sorted(victim.allocated.allocation.attempt_id for victim in eviction.victims)


def ids(*allocated: AllocatedRequest | None) -> list[str]:
    return sorted(holder.allocation.attempt_id for holder in allocated if holder is not None)


def part(gpus: str) -> Request:
    return factories.request(500, 512, gpus)


def own(name: str, gpus: int) -> Tenant:
    return Tenant(name, quota=Quota(Bounds(gpu_milli=gpus * 1000)))


@pytest.mark.parametrize(("tenant", "by"), [("bio", ("alice", "session")), ("art", ("", ""))])
def test_lower_priority_is_evicted_with_a_reason(tenant: str, by: tuple[str, str]) -> None:
    """The reason names no user of another tenant."""
    world = World([factories.node("n1", 1)])
    low = world.allocate(part("1"), tenant=tenant)
    eviction = world.evict("1")
    assert gone(eviction) == ids(low)
    assert eviction is not None
    assert eviction.nodes == (0,)
    assert eviction.victims[0].reason == attempts.Preempted(by_owner=by[0], by_kind=by[1], is_session=False)


def test_not_preemptible_equal_priority_or_guaranteed_workloads_stay() -> None:
    for stays in ({"preemptible": False}, {"priority": 0}, {"at": NOW - 599}):
        world = World([factories.node("n1", 1)])
        world.allocate(part("1"), **stays)
        assert world.evict("1") is None


def test_exempt_attempts_stay() -> None:
    world = World([factories.node("n1", 1)])
    allocated = world.allocate(part("1"))
    world.preemption = replace(world.preemption, exempt=ids(allocated))
    assert world.evict("1") is None


def test_victims_are_fewest_then_lowest_priority_then_youngest() -> None:
    world = World([factories.node("n1", 1), factories.node("n2", 1), factories.node("n3", 1), factories.node("n4", 1)])
    world.allocate(part("0.5"), 0)
    world.allocate(part("0.5"), 0)
    world.allocate(part("1"), 1, priority=-10)
    world.allocate(part("1"), 2, at=OLD)
    young = world.allocate(part("1"), 3, at=OLD + 1)
    assert gone(world.evict("1")) == ids(young)


def test_no_more_victims_than_needed() -> None:
    world = World([factories.node("n1", 8, cpus_milli=64000)])
    for _ in range(40):
        world.allocate(part("0.2"), 0)
    assert len(gone(world.evict("2"))) == 10


def test_no_victims_if_the_request_fits() -> None:
    world = World([factories.node("n1", 2)])
    world.allocate(part("1"))
    assert gone(world.evict("1")) == []


def test_devices_of_one_numa_node_are_cleared_if_requested() -> None:
    devices = [factories.device(index, uuid=f"c{index}", numa=index % 2) for index in range(4)]
    world = World([factories.node("n1", devices)])
    allocated = [world.allocate(part("1"), 0) for _ in range(4)]
    victims = gone(world.evict(request=replace(factories.request(gpus="2"), one_numa=True)))
    assert victims in (ids(allocated[0], allocated[2]), ids(allocated[1], allocated[3]))


def test_reclaim_takes_back_only_what_was_borrowed() -> None:
    world = World([factories.node("n1", 4)], own("bio", 2), own("art", 2))
    allocated = [world.allocate(part("1"), at=OLD + number, priority=5) for number in range(4)]
    eviction = world.evict("2")
    assert gone(eviction) == ids(allocated[2], allocated[3])
    assert eviction is not None
    assert eviction.victims[0].reason == attempts.Reclaimed(is_session=False)


def test_nominal_quota_of_a_tenant_is_not_evicted_for_priority_of_another() -> None:
    world = World([factories.node("n1", 2)], own("bio", 1), own("art", 2))
    world.allocate(part("1"))
    world.allocate(part("1"))
    assert world.evict("1", priority=50) is None


def test_quota_alone_can_require_a_victim() -> None:
    world = World([factories.node("n1", 8)], own("bio", 1), own("art", 1))
    allocated = [world.allocate(part("1"), at=OLD + number, priority=5) for number in range(2)]
    assert gone(world.evict("1")) == ids(allocated[1])
    full = World([factories.node("n1", 8)], Tenant("art", quota=Quota(per_user=Bounds(gpu_milli=1000))))
    mine = full.allocate(part("1"))
    full.allocate(part("1"), owner="eve")
    assert gone(full.evict("1", tenant="art", owner="bob")) == ids(mine)


def test_victim_for_quota_also_makes_room_if_possible() -> None:
    world = World([factories.node("n1", 1), factories.node("n2", 1)], own("bio", 1), own("art", 0))
    lent = world.allocate(part("1"), 0)
    world.allocate(part("1"), 1, tenant="nobody", priority=-60, at=OLD + 1)
    assert gone(world.evict("1")) == ids(lent)


def test_gang_is_evicted_whole_and_counts_all_members() -> None:
    world = World([factories.node("n1", 1), factories.node("n2", 1), factories.node("n3", 2)])
    gang = [world.allocate(part("1"), node, gang="g") for node in (0, 1)]
    assert gone(world.evict("1", request=factories.request(gpus="2"))) == []
    world.allocate(part("2"), 2, preemptible=False)
    assert gone(world.evict("1")) == ids(*gang)
    world.allocate(part("1"), 2)
    single = World([factories.node("n1", 1), factories.node("n2", 1), factories.node("n3", 1)])
    for node in (0, 1):
        single.allocate(part("1"), node, gang="g")
    alone = single.allocate(part("1"), 2, priority=-1)
    assert gone(single.evict("1")) == ids(alone)


def test_gang_with_an_exempt_member_stays() -> None:
    world = World([factories.node("n1", 1), factories.node("n2", 1)])
    world.allocate(part("1"), 0, gang="g")
    world.allocate(part("1"), 1, gang="g", preemptible=False)
    assert world.evict("1") is None


def test_eviction_for_a_gang_frees_a_node_for_each_member() -> None:
    world = World([factories.node(f"n{number}", 1) for number in range(4)])
    world.allocate(part("1"), 0, preemptible=False)
    allocated = [world.allocate(part("1"), node) for node in (1, 2)]
    eviction = world.evict("1", gang="mine", gang_size=3)
    assert gone(eviction) == ids(*allocated)
    assert eviction is not None
    assert sorted(eviction.nodes) == [1, 2, 3]
    assert world.evict("1", gang="mine", gang_size=4) is None


GPUS = st.none() | st.builds(GpuRequest, whole=st.integers(1, 2)) | st.builds(
    GpuRequest, fraction_milli=st.sampled_from([250, 500, 700])
)  # fmt: skip
REQUESTS = st.builds(Request, st.sampled_from([500, 1000, 3000]), st.sampled_from([GIB, 4 * GIB]), GPUS)
RUNNING = st.lists(
    st.tuples(
        REQUESTS,
        st.sampled_from([OLD, OLD + 1, NOW - 10]),
        st.sampled_from([-50, -10, 0]),
        st.booleans() | st.just(True),
        st.sampled_from(["art", "bio", "law"]),
        st.sampled_from([None, None, None, "g1", "g2"]),
    ),
    max_size=12,
)
TENANTS = st.sampled_from([(), (own("bio", 2), own("art", 1)), (own("bio", 3), own("art", 0), own("law", 1))])


def world_of(nodes: list[Node], tenants: tuple[Tenant, ...], running: list[tuple[object, ...]]) -> World:
    world = World(nodes, *tenants)
    for request, at, priority, preemptible, tenant, gang in running:
        fields = {"priority": priority, "preemptible": preemptible, "tenant": tenant, "gang": gang}
        world.allocate(request, None, at, **fields)  # type: ignore[arg-type]  # as the strategy made them
    return world


@given(clusters(), TENANTS, RUNNING, REQUESTS, st.sampled_from([1, 1, 2]), st.sampled_from([-20, 0, 10]))
def test_eviction_is_sufficient_minimal_and_allowed(
    nodes: list[Node], tenants: tuple[Tenant, ...], running: list[tuple[object, ...]], request: Request, size: int,
    priority: int,
) -> None:  # fmt: skip
    world = world_of(nodes, tenants, running)
    eviction = world.evict(request=request, gang="x" if size > 1 else None, gang_size=size, priority=priority)
    if eviction is None:
        return
    victims = [victim.allocated for victim in eviction.victims]
    assert all(holder.preemptible and holder.allocation.at + 600 <= NOW for holder in victims)
    assert all(
        holder.priority < priority or (world.quotas.has_quota("bio") and holder.tenant != "bio") for holder in victims
    )
    assert len(set(eviction.nodes)) == size
    units = {holder.gang or holder.allocation.attempt_id for holder in victims}
    for gang in units & {"g1", "g2"}:
        assert {holder.allocation.attempt_id for holder in world.allocations if holder.gang == gang} <= set(
            gone(eviction)
        )
    assert suffices(world, request, eviction.nodes, victims, size)
    for unit in units:
        fewer = [holder for holder in victims if (holder.gang or holder.allocation.attempt_id) != unit]
        assert not suffices(world, request, eviction.nodes, fewer, size)


def suffices(
    world: World, request: Request, numbers: tuple[int, ...], going: list[AllocatedRequest], size: int
) -> bool:
    shape = world.grid.shape(request)
    with world.quotas.excluding(going):
        starts = world.quotas.decide("bio", "alice", amounts_of(shape, size)).starts
    for victim in going:
        world.grid.give(victim.allocation)
    fits = bool(world.grid.fits(shape, np.array(numbers)).all())
    for victim in going:
        world.grid.take(victim.allocation)
    return starts and fits


@given(clusters(), RUNNING, REQUESTS)
def test_victims_are_fewest_without_quotas_and_gangs(
    nodes: list[Node], running: list[tuple[object, ...]], request: Request
) -> None:
    world = world_of(nodes, (), [(*holder[:5], None) for holder in running])
    eviction = world.evict(request=request)
    may = [
        holder
        for holder in world.allocations
        if holder.preemptible and holder.priority < 0 and holder.allocation.at + 600 <= NOW
    ]
    shape, nodes_ = world.grid.shape(request), everywhere(world.grid)
    slots = [world.allocations.slot[holder.allocation.attempt_id] for holder in may]
    for number in range(len(may) + 1):
        for some in combinations(slots, number):
            rows = free_rows(world.grid, nodes_) + world.allocations.sum(np.array(some, np.int64))
            if fits_in(world.grid, shape, nodes_, rows).any():
                assert eviction is not None
                assert len(eviction.victims) == number
                return
    assert eviction is None
