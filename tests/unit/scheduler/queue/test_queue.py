"""The order of the queue."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB, NOW

from commonage.domain.requests import Request
from commonage.domain.tenants import Rules, Tenant
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.queue import queue
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

HOUR = 3600.0
CORE = Request(1000, GIB)


def cluster(rules: Rules | None = None) -> Snapshot:
    """Ten nodes of ten cores: a core is a hundredth of it."""
    nodes = [factories.node(f"n{number}", cpus_milli=10_000, memory_mib=1024 * GIB) for number in range(10)]
    return Snapshot(nodes, rules)


def queued(number: int, owner: str = "ann", tenant: str = "lab", **fields: object) -> QueuedRequest:
    base = QueuedRequest(f"w{number:03}", CORE, 0, NOW + number, owner=owner, tenant=tenant)
    return replace(base, **fields)  # type: ignore[arg-type]


def holds(snapshot: Snapshot, owner: str, cores: int, since: float, tenant: str = "lab") -> AllocatedRequest:
    allocation = factories.allocation(f"h-{tenant}-{owner}-1", node="n0", cpus_milli=1000 * cores, at=since)
    allocated = AllocatedRequest(allocation, f"h-{tenant}-{owner}", "", owner, "job", tenant=tenant)
    snapshot.allocate(allocated)
    return allocated


def order(snapshot: Snapshot, now: float = NOW) -> list[str]:
    return [snapshot.queue.queued_requests[slot].workload_id for slot in snapshot.order(now).slots]  # type: ignore[union-attr]


def in_order(snapshot: Snapshot, *queued_requests: QueuedRequest) -> list[str]:
    for queued_request in queued_requests:
        snapshot.enqueue(queued_request)
    return order(snapshot)


def test_order_is_by_priority_then_age() -> None:
    assert in_order(cluster(), queued(1), queued(2, priority=10), queued(3, priority=-10)) == [
        "w002",
        "w001",
        "w003",
    ]


def test_accounts_with_little_usage_come_first() -> None:
    snapshot = cluster()
    holds(snapshot, "ann", 10, NOW - HOUR)
    assert in_order(snapshot, queued(1, "ann"), queued(2, "bob")) == ["w002", "w001"]


def test_usage_decays() -> None:
    snapshot = cluster(Rules(half_life_s=HOUR))
    allocated = holds(snapshot, "ann", 10, NOW - HOUR)
    snapshot.release(allocated.workload_id, NOW)
    debts = [snapshot.usage.debt("lab", "ann", NOW + hours * HOUR) for hours in (0, 1, 2)]
    assert debts[1] / debts[0] == debts[2] / debts[1] == 0.5


def test_two_busy_users_alternate() -> None:
    anns = [queued(number, "ann") for number in range(4)]
    bobs = [queued(10 + number, "bob") for number in range(4)]
    ordered = in_order(cluster(Rules(age_credit=0.0)), *anns, *bobs)
    assert ordered == ["w000", "w010", "w001", "w011", "w002", "w012", "w003", "w013"]


def test_tenant_with_double_weight_gets_double_share() -> None:
    rules = Rules(tenants=(Tenant("bio", weight=2.0), Tenant("lab")), age_credit=0.0)
    ordered = in_order(
        cluster(rules),
        *(queued(number, "ann", "bio") for number in range(4)),
        *(queued(10 + number, "bob", "lab") for number in range(2)),
    )
    assert ordered == ["w000", "w010", "w001", "w002", "w011", "w003"]


def test_large_request_costs_more_positions_than_a_small_one() -> None:
    large = queued(0, "ann", request=Request(5000, GIB))
    ordered = in_order(
        cluster(Rules(age_credit=0.0)), large, queued(1, "ann"), *(queued(10 + n, "bob") for n in range(6))
    )
    assert ordered.index("w001") == 6, "five cores of Bob's first"


def test_users_of_a_tenant_share_its_part() -> None:
    """Three users of one tenant, one of another: after the first round, the single user is served as often as the three
    together.
    """
    crowd = [queued(10 * user + number, f"user-{user}") for user in range(3) for number in range(3)]
    lonely = [queued(90 + number, "zoe", "other") for number in range(9)]
    ordered = in_order(cluster(Rules(age_credit=0.0)), *crowd, *lonely)
    tenants = ["other" if name >= "w090" else "lab" for name in ordered]
    assert [tenants[:8].count("lab"), tenants[:16].count("lab")] == [5, 9]


def test_age_credit_follows_the_rules() -> None:
    """Ann owes 36 capacity-seconds: with a credit of a hundredth that is an hour of waiting."""
    for waited, first in ((0.9 * HOUR, "w002"), (1.1 * HOUR, "w001")):
        snapshot = cluster(Rules(entry_penalty_s=0.0, age_credit=0.01, half_life_s=1e9))
        holds(snapshot, "ann", 10, NOW - 180)  # a tenth of the cluster; counted for her, and for her tenant
        early, late = queued(1, "ann", submitted_at=NOW - waited), queued(2, "bob", "other", submitted_at=NOW)
        assert in_order(snapshot, early, late)[0] == first


def test_ties_are_ordered_by_age_then_id() -> None:
    rules = Rules(entry_penalty_s=0.0, age_credit=0.0)
    queued_requests = [queued(number, f"user-{9 - number}", submitted_at=NOW + number // 2) for number in range(6)]
    assert in_order(cluster(rules), *reversed(queued_requests)) == [
        queued_request.workload_id for queued_request in queued_requests
    ]


def test_gang_takes_the_position_of_its_first_member() -> None:
    gang = [queued(number, "ann", gang="g", gang_size=3) for number in range(3)]
    ordered = in_order(cluster(Rules(age_credit=0.0)), *gang, *(queued(10 + number, "bob") for number in range(3)))
    assert ordered == ["w000", "w001", "w002", "w010", "w011", "w012"]


PEOPLE = st.sampled_from(["ann", "bob", "eve"])
COMINGS = st.lists(
    st.tuples(st.integers(0, 30), PEOPLE, st.sampled_from(["lab", "bio"]), st.sampled_from([0, 0, 5]), st.booleans()),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(COMINGS)
def test_order_is_independent_of_arrivals_and_departures(comings: list[tuple[int, ...]]) -> None:
    kept, there = cluster(), {}
    for number, owner, tenant, priority, looks in comings:
        name = f"w{number:03}"
        if name in there:
            kept.dequeue(name)
            del there[name]
        else:
            there[name] = queued(number, owner, tenant, priority=priority)  # type: ignore[arg-type]
            kept.enqueue(there[name])
        if looks:
            order(kept)
    rebuilt = cluster()
    assert order(kept) == in_order(rebuilt, *there.values())
    assert [kept.position(name, NOW) for name in order(kept)] == list(range(1, len(there) + 1))
    assert len(kept.queue) == len(there)


def plain_order(snapshot: Snapshot, present: Iterable[QueuedRequest], now: float) -> list[str]:
    """The order by its definition, computed for each request alone."""
    present, rules, usage = list(present), snapshot.rules, snapshot.usage
    snapshot.fits.refresh()
    shares = snapshot.fits.shares(snapshot.capacity())

    def line(one: QueuedRequest) -> tuple[float, float, str]:
        return (-one.priority, one.submitted_at, one.workload_id)

    def cost(one: QueuedRequest) -> int:
        return round(shares[snapshot.queue._class_of[one.request]] * 1e9)

    def key(one: QueuedRequest) -> float:
        members = len({other.owner for other in present if other.tenant == one.tenant})
        owners = {owner for tenant, owner in usage._number if tenant == one.tenant}
        mine = [other for other in present if (other.tenant, other.owner) == (one.tenant, one.owner)]
        ahead = sum(cost(other) for other in mine if line(other) < line(one))
        weight = rules.tenant(one.tenant).weight
        base = sum(usage.debt(one.tenant, owner, now) for owner in sorted(owners))
        base = (base + members * usage.debt(one.tenant, one.owner, now)) / weight
        return base + members * rules.entry_penalty_s / weight / 1e9 * ahead + rules.age_credit * one.submitted_at

    keys = {one.workload_id: key(one) for one in present}
    for one in present:
        if one.gang is not None:
            keys[one.workload_id] = min(key(other) for other in present if other.gang == one.gang)
    present.sort(key=lambda one: (-one.priority, keys[one.workload_id], one.submitted_at, one.workload_id))
    return [one.workload_id for one in present]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 20),
        PEOPLE,
        st.sampled_from(["lab", "bio"]),
        st.sampled_from([0, 0, 5]),
        st.sampled_from([None, None, "g"]),
        st.sampled_from([CORE, Request(3000, GIB)]),
        st.integers(0, 3),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([0.0, 0.01]), st.sampled_from([0.0, 600.0]), st.sampled_from([0, 2, 64]))
def test_order_agrees_with_its_definition(
    steps: list[tuple[int, ...]], credit: float, penalty: float, few: int
) -> None:
    """Changes one by one or many at once, with ties and gangs, at several times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "FEW_CHANGES", few)
        _orders_agree(steps, Rules(tenants=(Tenant("bio", weight=2.0),), age_credit=credit, entry_penalty_s=penalty))


def _orders_agree(steps: list[tuple[int, ...]], rules: Rules) -> None:
    snapshot, there = cluster(rules), {}
    holds(snapshot, "ann", 3, NOW - HOUR)
    for number, owner, tenant, priority, gang, request, looks in steps:
        name = f"w{number:03}"
        if name in there:
            snapshot.dequeue(name)
            del there[name]
        else:
            there[name] = queued(
                number,
                owner,
                tenant,
                priority=0 if gang else priority,
                gang=gang,
                request=request,
                submitted_at=NOW - number // 4,
            )
            snapshot.enqueue(there[name])
        if looks == 1:
            assert order(snapshot, NOW + number) == plain_order(snapshot, there.values(), NOW + number)
        elif looks == 2:
            holds(snapshot, owner, 1, NOW - number, tenant)
    assert order(snapshot) == plain_order(snapshot, there.values(), NOW)


def test_unused_request_classes_are_reused() -> None:
    snapshot = cluster()
    for number in range(500):
        snapshot.enqueue(queued(number, request=Request(1000 + number, GIB)))
        snapshot.dequeue(f"w{number:03}")
        order(snapshot)
    assert len(snapshot.queue._class_sizes) == 1
