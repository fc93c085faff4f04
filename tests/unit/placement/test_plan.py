from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.placement.fleets import GIB, NOW, REQUESTS, after, fleets, later, queues, rooms, snapshots

from commonage.domain.fleet import NodeState
from commonage.domain.ids import attempt_id
from commonage.domain.requests import Request, parse_gpus
from commonage.placement.plan import plan
from commonage.placement.rooms import Ceiling, Room
from commonage.placement.snapshot import Ask, Held, Snapshot
from commonage.testing import factories

SLOWLY = settings(max_examples=50, deadline=None)


def ask(
    number: int,
    gpus: str | None = None,
    *,
    limit: int | None = None,
    priority: int = 0,
    cpus: int = 1000,
    memory: int = 1024,
) -> Ask:
    name = f"w{number:012}"
    request = Request(cpus, memory, parse_gpus(gpus))
    return Ask(name, attempt_id(name, 1), request, hash(request), priority, NOW + number / 1000, limit)


def held(
    number: int, node: str, gpus_mib: dict[str, int] | None = None, *, ends_at: float | None = None, cpus: int = 1000
) -> Held:
    name = f"h{number:012}"
    shares = [factories.share(factories.device(0, uuid=uuid), memory_mib=mib) for uuid, mib in (gpus_mib or {}).items()]
    lease = factories.lease(attempt_id(name, 1), node=node, shares=shares, cpus_milli=cpus)
    return Held(lease, name, "train", "ann", "job", ends_at)


def starts(snapshot: Snapshot) -> dict[str, str]:
    return {workload_id: lease.node for workload_id, lease in plan(snapshot).starts}


@SLOWLY
@given(snapshots())
def test_capacity_is_never_exceeded(snapshot: Snapshot) -> None:
    outcome = plan(snapshot)
    for room in rooms(snapshot, outcome.held).values():
        assert room.free_cpus_milli >= 0
        assert room.free_memory_mib >= 0
        for card in room.cards:
            assert card.free_mib >= 0
            assert card.free_milli >= 0
    by_card: dict[str, list[bool]] = {}
    for one in outcome.held:
        for share in one.lease.shares:
            by_card.setdefault(share.device_uuid, []).append(share.whole)
    assert all(len(holders) == 1 for holders in by_card.values() if any(holders)), "a whole card has one holder"


@SLOWLY
@given(snapshots())
def test_a_start_gets_what_it_asked_for_where_work_is_taken(snapshot: Snapshot) -> None:
    asked = {one.workload_id: one for one in snapshot.queue}
    nodes = {node.name: node for node in snapshot.nodes}
    for workload_id, lease in plan(snapshot).starts:
        request, node = asked[workload_id].request, nodes[lease.node]
        devices = {device.uuid: device for device in node.report.devices}
        assert node.state is NodeState.READY
        assert (lease.cpus_milli, lease.memory_mib) == (request.cpus_milli, request.memory_mib)
        assert lease.attempt_id == asked[workload_id].attempt_id
        gpu = request.gpu
        assert len(lease.shares) == (0 if gpu is None else gpu.whole or 1)
        assert len({share.device_uuid for share in lease.shares}) == len(lease.shares)
        for share in lease.shares:
            device = devices[share.device_uuid]
            assert gpu is not None
            assert share.memory_mib == gpu.memory_on(device.memory_mib)
            assert not device.faults
            assert gpu.model is None or gpu.model in device.model


@SLOWLY
@given(snapshots())
def test_the_same_snapshot_gives_the_same_plan(snapshot: Snapshot) -> None:
    backwards = replace(snapshot, nodes=list(reversed(snapshot.nodes)), held=list(reversed(snapshot.held)))
    assert plan(snapshot).starts == plan(snapshot).starts == plan(backwards).starts


@SLOWLY
@given(snapshots())
def test_equal_asks_start_in_their_order(snapshot: Snapshot) -> None:
    started = {workload_id for workload_id, _ in plan(snapshot).starts}
    waiting = set()
    for one in snapshot.queue:
        sort = (one.shape, one.time_limit_s)
        if one.workload_id in started:
            assert sort not in waiting
        else:
            waiting.add(sort)


@SLOWLY
@given(snapshots())
def test_nothing_that_could_start_is_left_waiting_but_for_a_promise(snapshot: Snapshot) -> None:
    outcome = plan(snapshot)
    started = {workload_id for workload_id, _ in outcome.starts}
    for one in snapshot.queue:
        if one.workload_id not in started and outcome.promise is None:
            assert not any(room.fits(one.request) for room in outcome.rooms.values())


@SLOWLY
@given(snapshots())
def test_a_second_pass_starts_nothing(snapshot: Snapshot) -> None:
    assert plan(after(snapshot, plan(snapshot))).starts == ()


def _younger(one: Ask, count: int, priority: int, now: float) -> Ask:
    name = f"x{count:06}{one.workload_id[7:]}"
    shape = 1000 + one.shape + 100 * count
    return replace(
        one, workload_id=name, attempt_id=attempt_id(name, 1), priority=priority, submitted_at=now, shape=shape
    )


@SLOWLY
@given(snapshots(), st.data())
def test_the_promise_is_kept(snapshot: Snapshot, data: st.DataObject) -> None:
    """Whatever younger work arrives, the one that was promised a start has it by then."""
    outcome = plan(snapshot)
    if outcome.promise is None:
        return
    promised, due = outcome.promise.workload_id, outcome.promise.at
    snapshot = after(snapshot, outcome)
    first = next(one for one in snapshot.queue if one.workload_id == promised)
    # What stands before it could never be promised anything; without it the promised one is the head.
    snapshot = replace(snapshot, queue=[one for one in snapshot.queue if one.order >= first.order])
    ends = {one.ends_at for one in snapshot.held if one.ends_at is not None and one.ends_at < due}
    for count, now in enumerate(sorted({*ends, snapshot.now + 1, due})):
        if now > due:
            break
        arrivals = [_younger(one, count, first.priority, now) for one in data.draw(queues(4))]
        snapshot = later(replace(snapshot, queue=sorted([*snapshot.queue, *arrivals], key=lambda one: one.order)), now)
        outcome = plan(snapshot)
        if promised in {workload_id for workload_id, _ in outcome.starts}:
            return
        assert outcome.promise is not None
        assert outcome.promise.workload_id == promised
        assert outcome.promise.at <= due
        snapshot = after(snapshot, outcome)
    pytest.fail(f"{promised} should have started at {due}")


@SLOWLY
@given(fleets(), REQUESTS)
def test_fits_is_no_refusal_and_the_ceiling_covers_it(nodes: list[object], request_: Request) -> None:
    found = [Room.empty(node) for node in nodes]  # type: ignore[arg-type]
    for room in found:
        assert room.fits(request_) == (room.refusal(request_) is None)
    if any(room.fits(request_) for room in found):
        assert Ceiling.over(found).covers(request_)


def test_best_fit_over_vram_keeps_the_larger_hole() -> None:
    node = factories.node("n", 2)
    before = held(0, "n", {"GPU-n-1": 12 * GIB})
    outcome = plan(Snapshot(NOW, [node], [before], [ask(1, "8GiB")]))
    assert [share.device_uuid for share in outcome.starts[0][1].shares] == ["GPU-n-1"]


def test_work_without_a_gpu_keeps_away_from_free_cards() -> None:
    nodes = [factories.node("a", 2), factories.node("b")]
    assert starts(Snapshot(NOW, nodes, [], [ask(1)])) == {"w000000000001": "b"}


def test_whole_cards_take_the_smallest_that_will_do() -> None:
    cards = [factories.device(0, uuid="large", memory_mib=80 * GIB), factories.device(1, uuid="small")]
    outcome = plan(Snapshot(NOW, [factories.node("n", cards)], [], [ask(1, "1")]))
    assert [share.device_uuid for share in outcome.starts[0][1].shares] == ["small"]


def test_models_are_matched_by_any_part_of_their_name() -> None:
    cards = [
        factories.device(0, uuid="a", model="NVIDIA A100-SXM4-80GB"),
        factories.device(1, uuid="b", model="NVIDIA L4"),
    ]
    outcome = plan(
        Snapshot(NOW, [factories.node("n", cards)], [], [ask(1, "a100:1"), ask(2, "l4:4GiB"), ask(3, "H100")])
    )
    assert [lease.shares[0].device_uuid for _, lease in outcome.starts] == ["a", "b"]


def test_priority_then_age() -> None:
    node = factories.node("n", 1)
    queue = sorted([ask(1, "1"), ask(2, "1", priority=5), ask(3, "1", priority=-5)], key=lambda one: one.order)
    assert starts(Snapshot(NOW, [node], [], queue)) == {"w000000000002": "n"}


def test_a_small_one_passes_a_large_one_where_nothing_tells_when_that_starts() -> None:
    node = factories.node("n", 1)
    before = held(0, "n", {"GPU-n-0": 16 * GIB})
    assert starts(Snapshot(NOW, [node], [before], [ask(1, "12GiB"), ask(2, "8GiB")])) == {"w000000000002": "n"}


def test_a_small_one_passes_only_if_it_ends_before_the_large_one_starts() -> None:
    node = factories.node("n", 1)
    before = held(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 100)
    queue = [ask(1, "20GiB"), ask(2, "8GiB"), ask(3, "8GiB", limit=200), ask(4, "8GiB", limit=100)]
    assert starts(Snapshot(NOW, [node], [before], queue)) == {"w000000000004": "n"}


def test_what_fits_beside_the_promise_starts() -> None:
    node = factories.node("n", 1)
    before = held(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 100)
    queue = [ask(1, "20GiB"), ask(2, "4GiB"), ask(3, "4GiB")]
    assert starts(Snapshot(NOW, [node], [before], queue)) == {"w000000000002": "n"}


def test_another_card_is_taken_where_the_best_one_is_promised() -> None:
    node = factories.node("n", 2)
    before = [held(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 100), held(1, "n", {"GPU-n-1": 8 * GIB})]
    outcome = plan(Snapshot(NOW, [node], before, [ask(1, "20GiB"), ask(2, "6GiB")]))
    assert [lease.shares[0].device_uuid for _, lease in outcome.starts] == ["GPU-n-1"]


def test_a_limit_that_is_over_already_promises_from_now() -> None:
    node = factories.node("n", 1)
    before = held(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW - 5)
    outcome = plan(Snapshot(NOW, [node], [before], [ask(1, "20GiB")]))
    assert outcome.promise is not None
    assert outcome.promise.at == NOW


def test_a_machine_that_shrank_takes_nothing_until_it_has_room() -> None:
    node = factories.node("n", cpus_milli=2000)
    assert starts(Snapshot(NOW, [node], [held(0, "n", cpus=4000)], [ask(1)])) == {}


def test_leases_on_machines_nobody_knows_do_no_harm() -> None:
    assert starts(Snapshot(NOW, [factories.node("n")], [held(0, "gone", ends_at=NOW + 5)], [ask(1)])) == {
        "w000000000001": "n"
    }
