from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import (
    GIB,
    NOW,
    REQUESTS,
    Scene,
    allocated,
    by_age,
    overdrawn,
    queued,
    queues,
    scenes,
    stored_fields,
)

from commonage.control.state.live_state import request_from_spec
from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons.nodes import DiskNearlyFull
from commonage.domain.reasons.waiting import InsufficientDisk
from commonage.domain.requests import Request, part_of
from commonage.domain.workloads import Kind
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.fit.filters import refusal
from commonage.scheduler.model.shapes import QueuedRequest
from commonage.scheduler.plan import plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

SLOWLY = settings(max_examples=50, deadline=None)


def starts(scene: Scene) -> dict[str, str]:
    return {workload_id: allocation.node for workload_id, allocation in scene.plan().starts}


@SLOWLY
@given(scenes(gangs=True))
def test_capacity_is_never_exceeded(scene: Scene) -> None:
    after = scene.after(scene.plan())
    assert overdrawn(after) == []


@SLOWLY
@given(scenes(gangs=True), st.integers(0, 2), st.integers(1, 3))
def test_requests_to_protect_are_found_part_by_part(scene: Scene, promises: int, at_once: int) -> None:
    whole = stored_fields(scene.plan()), scene.plan().backfill.protected.tolist()
    assert whole == _with_constants(scene, CLASSES_AT_ONCE=at_once)
    few = _with_constants(scene, MAX_PROMISES=promises)
    assert few == _with_constants(scene, MAX_PROMISES=promises, CLASSES_AT_ONCE=at_once)


def _with_constants(scene: Scene, **constants: int) -> tuple[object, list[bool]]:
    with pytest.MonkeyPatch.context() as patch:
        for name, number in constants.items():
            patch.setattr(f"commonage.scheduler.plan.{name}", number)
        outcome = scene.plan()
    return stored_fields(outcome), outcome.backfill.protected.tolist()


@SLOWLY
@given(scenes(gangs=True), st.integers(1, 3))
def test_plan_that_ends_early_is_the_begin_of_the_whole_plan(scene: Scene, most: int) -> None:
    """The next plan goes on: nothing exceeds the capacity, and gangs start whole."""
    whole, done = scene.plan().starts, []
    part = plan(scene.snapshot(), scene.now, lambda started: started >= most).starts
    assert part == whole[: len(part)]
    assert len(part) >= min(most, len(whole))
    while True:
        outcome = plan(scene.snapshot(), scene.now, lambda started: started >= most)
        done += list(outcome.starts)
        scene = scene.after(outcome)
        assert overdrawn(scene) == []
        if not outcome.starts:
            break
    assert not scene.plan().starts


@SLOWLY
@given(scenes(gangs=True))
def test_start_gets_its_request_on_a_schedulable_node(scene: Scene) -> None:
    requests = {queued_request.workload_id: queued_request for queued_request in scene.queue}
    nodes = {node.name: node for node in scene.nodes}
    for workload_id, allocation in scene.plan().starts:
        request, node = requests[workload_id].request, nodes[allocation.node]
        devices = {device.uuid: device for device in node.report.devices}
        assert node.state is NodeState.READY
        assert set(request.labels) <= set(node.report.labels)
        assert (allocation.cpus_milli, allocation.memory_mib) == (request.cpus_milli, request.memory_mib)
        assert allocation.attempt_id == requests[workload_id].attempt_id
        gpu = request.gpu
        assert len(allocation.shares) == (0 if gpu is None else gpu.whole or 1)
        assert len({share.device_uuid for share in allocation.shares}) == len(allocation.shares)
        if request.one_numa:
            assert len({devices[share.device_uuid].numa for share in allocation.shares}) <= 1
        for share in allocation.shares:
            device = devices[share.device_uuid]
            assert gpu is not None
            part = part_of(device, gpu)
            assert part is not None
            assert (share.memory_mib, share.compute_milli) == (part.memory_mib, part.compute_milli)
            assert not device.faults
            assert gpu.model is None or device.model in gpu.model.split("|")


@SLOWLY
@given(scenes(users=3, gangs=True))
def test_plan_is_deterministic_for_a_snapshot(scene: Scene) -> None:
    snapshot = scene.snapshot()
    first, again = plan(snapshot, NOW), plan(snapshot, NOW)
    backwards = replace(scene, allocated=list(reversed(scene.allocated)), queue=list(reversed(scene.queue))).plan()
    assert stored_fields(first) == stored_fields(again) == stored_fields(backwards)


@SLOWLY
@given(scenes())
def test_equal_requests_start_in_queue_order(scene: Scene) -> None:
    started, waiting = scene.plan().started, set()
    for queued_request in scene.queue:
        request_class = (queued_request.request, queued_request.time_limit_s)
        if queued_request.workload_id in started:
            assert request_class not in waiting
        else:
            waiting.add(request_class)


@SLOWLY
@given(scenes())
def test_request_that_fits_waits_only_for_earlier_requests(scene: Scene) -> None:
    outcome = scene.plan()
    left = scene.grid(scene.after(outcome).allocated)
    promised = {allocation.node for promise in outcome.promises.values() for allocation in promise.allocations}
    for queued_request in scene.queue:
        if queued_request.workload_id not in outcome.started:
            fit = left.fits(left.shape(queued_request.request), np.arange(len(left.nodes)))
            assert {left.nodes[number].name for number in np.flatnonzero(fit)} <= promised


@SLOWLY
@given(scenes(gangs=True))
def test_second_pass_starts_nothing(scene: Scene) -> None:
    assert scene.after(scene.plan()).plan().starts == ()


@SLOWLY
@given(scenes(8, gangs=True), st.integers(0, 7))
def test_later_requests_do_not_delay_promises(scene: Scene, length: int) -> None:
    """Promises to the first requests do not depend on the requests behind them, and starts behind do not change
    them.
    """
    alone = replace(scene, queue=scene.queue[:length])
    promised = {name: promise.at for name, promise in alone.plan().promises.items()}
    outcome = scene.plan()
    whole = {queued_request.gang or queued_request.workload_id for queued_request in scene.queue[length:]}
    kept = {name: promise.at for name, promise in outcome.promises.items() if name in promised}
    assert kept == {name: at for name, at in promised.items() if name not in outcome.started and name in kept}
    assert all(name in outcome.promises or name[:13] in whole for name in promised)
    later = scene.after(outcome).plan()
    assert all(later.promises[name].at <= at for name, at in kept.items() if at is not None)


def _younger(older: QueuedRequest, count: int, priority: int, now: float) -> QueuedRequest:
    name = f"x{count:06}{older.workload_id[7:]}"
    return replace(older, workload_id=name, priority=priority, submitted_at=now)


@SLOWLY
@given(scenes(), st.data())
def test_first_promise_is_kept(scene: Scene, data: st.DataObject) -> None:
    """Whatever younger work arrives, the first that was promised a start has it by then."""
    outcome = scene.plan()
    if not outcome.promises:
        return
    promised, first_promise = next(iter(outcome.promises.items()))
    due = first_promise.at
    assert due is not None, "no request here waits long enough for a node to be reserved"
    scene = scene.after(outcome)
    place = [request.workload_id for request in scene.queue].index(promised)
    # What stands before it could never be promised anything; without it the promised one is the head.
    scene, first = replace(scene, queue=scene.queue[place:]), scene.queue[place]
    ends = {request.ends_at for request in scene.allocated if request.ends_at is not None and request.ends_at < due}
    for count, now in enumerate(sorted({*ends, scene.now + 1, due})):
        if now > due:
            break
        arrivals = [_younger(request, count, first.priority, now) for request in data.draw(queues(4))]
        scene = replace(scene, queue=by_age([*scene.queue, *arrivals])).later(now)
        outcome = scene.plan()
        if promised in outcome.started:
            return
        at = outcome.promises[promised].at
        assert at is not None
        assert at <= due
        scene = scene.after(outcome)
    pytest.fail(f"{promised} should have started at {due}")


@SLOWLY
@given(scenes(), REQUESTS)
def test_request_fits_exactly_if_no_filter_refuses(scene: Scene, request_: Request) -> None:
    grid = scene.grid()
    shape = grid.shape(request_)
    for number, fit in enumerate(grid.fits(shape, np.arange(len(grid.nodes)))):
        assert bool(fit) == (refusal(grid, shape, number) is None)


def test_best_fit_keeps_the_device_with_more_free_vram() -> None:
    node = factories.node("n", 2)
    before = allocated(0, "n", {"GPU-n-1": 12 * GIB})
    outcome = Scene(NOW, [node], [before], [queued(1, "8GiB")]).plan()
    assert [share.device_uuid for share in outcome.starts[0][1].shares] == ["GPU-n-1"]


def test_request_without_gpu_avoids_nodes_with_free_devices() -> None:
    nodes = [factories.node("a", 2), factories.node("b")]
    assert starts(Scene(NOW, nodes, [], [queued(1)])) == {"w000000000001": "b"}


def test_model_matches_any_part_of_the_name() -> None:
    devices = [
        factories.device(0, uuid="a", model="NVIDIA A100-SXM4-80GB"),
        factories.device(1, uuid="b", model="NVIDIA L4"),
    ]
    queue = [queued(1, "a100:1"), queued(2, "l4:4GiB"), queued(3, "H100")]
    outcome = Scene(NOW, [factories.node("n", devices)], [], queue).plan()
    assert [allocation.shares[0].device_uuid for _, allocation in outcome.starts] == ["a", "b"]


def test_order_is_by_priority_then_age() -> None:
    node = factories.node("n", 1)
    queue = [queued(1, "1"), queued(2, "1", priority=5), queued(3, "1", priority=-5)]
    assert starts(Scene(NOW, [node], [], queue)) == {"w000000000002": "n"}


def test_small_request_backfills_while_start_of_large_one_is_unknown() -> None:
    node = factories.node("n", 1)
    before = allocated(0, "n", {"GPU-n-0": 16 * GIB})
    assert starts(Scene(NOW, [node], [before], [queued(1, "12GiB"), queued(2, "8GiB")])) == {"w000000000002": "n"}


def test_small_request_backfills_only_if_it_ends_before_the_promise() -> None:
    node = factories.node("n", 1)
    before = allocated(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 100)
    queue = [queued(1, "20GiB"), queued(2, "8GiB"), queued(3, "8GiB", limit=200), queued(4, "8GiB", limit=100)]
    assert starts(Scene(NOW, [node], [before], queue)) == {"w000000000004": "n"}


def test_request_that_fits_next_to_the_promise_starts() -> None:
    node = factories.node("n", 1)
    before = allocated(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 100)
    queue = [queued(1, "20GiB"), queued(2, "4GiB"), queued(3, "4GiB")]
    assert starts(Scene(NOW, [node], [before], queue)) == {"w000000000002": "n"}


def test_backfill_takes_another_device_than_the_promised_one() -> None:
    node = factories.node("n", 2)
    before = [allocated(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 100), allocated(1, "n", {"GPU-n-1": 8 * GIB})]
    outcome = Scene(NOW, [node], before, [queued(1, "20GiB"), queued(2, "6GiB")]).plan()
    assert [allocation.shares[0].device_uuid for _, allocation in outcome.starts] == ["GPU-n-1"]


def test_promise_starts_now_if_the_time_limit_has_passed() -> None:
    node = factories.node("n", 1)
    before = allocated(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW - 5)
    outcome = Scene(NOW, [node], [before], [queued(1, "20GiB")]).plan()
    assert outcome.promises["w000000000001"].at == NOW


def test_shrunken_node_takes_nothing_until_it_has_room() -> None:
    node = factories.node("n", cpus_milli=2000)
    assert starts(Scene(NOW, [node], [allocated(0, "n", cpus=4000)], [queued(1)])) == {}


def test_allocations_on_unknown_nodes_are_ignored() -> None:
    assert starts(Scene(NOW, [factories.node("n")], [allocated(0, "gone", ends_at=NOW + 5)], [queued(1)])) == {
        "w000000000001": "n"
    }


# --- nodes with a nearly full disk ---------------------------------------------------------------------------------

FULL = DiskNearlyFull(folders=("/data",), free_mib=3, min_mib=256)


def disk_pressure(node: Node) -> Node:
    return replace(node, report=replace(node.report, disk_pressure=FULL))


def one_of_each_kind(*nodes: Node) -> Snapshot:
    snapshot = Snapshot(nodes)
    for number, kind in enumerate((Kind.JOB, Kind.SESSION, Kind.SERVICE)):
        spec = factories.spec(kind=kind)
        snapshot.enqueue(request_from_spec(spec, f"{kind}-{number}", NOW + number))
    return snapshot


def started_kinds(snapshot: Snapshot) -> dict[str, str]:
    return {workload_id.partition("-")[0]: allocation.node for workload_id, allocation in plan(snapshot, NOW).starts}


def test_only_sessions_start_on_a_full_disk() -> None:
    assert started_kinds(one_of_each_kind(disk_pressure(factories.node("full")))) == {"session": "full"}
    both = started_kinds(one_of_each_kind(disk_pressure(factories.node("full")), factories.node("roomy")))
    assert (both["job"], both["service"]) == ("roomy", "roomy")
    assert "session" in both


def test_wait_reason_names_the_full_disk() -> None:
    snapshot = one_of_each_kind(disk_pressure(factories.node("full")))
    job = request_from_spec(factories.spec(kind=Kind.JOB), "another", NOW)
    assert explain(snapshot, job, NOW).reasons == (InsufficientDisk(node="full", total=1, cause=FULL),)
    session = request_from_spec(factories.spec(kind=Kind.SESSION), "another", NOW)
    assert explain(snapshot, session, NOW).startable_now
