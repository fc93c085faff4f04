from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB, NOW, REQUESTS, Scene, clusters, play, scenes
from tests.unit.scheduler.test_plan import held, queued

from commonage.domain.explanations import Confidence
from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons import Reason, refusals, waiting
from commonage.domain.reasons.waiting import Resources
from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.explain.explain import ever_fits, why_waiting
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.queued_requests import QueuedRequest
from commonage.scheduler.plan import plan
from commonage.testing import factories

SLOWLY = settings(max_examples=50, deadline=None)


def cpus_shortfall(requested: int, free: int, total: int) -> waiting.InsufficientCpu:
    """On `n`, the only node."""
    return waiting.InsufficientCpu(
        node="n", total=1, requested_cpus_milli=requested, free_cpus_milli=free, total_cpus_milli=total
    )


def gpus_shortfall(model: str | None) -> waiting.InsufficientGpus:
    return waiting.InsufficientGpus(node="n", total=1, model=model, requested=2, free=1, present=2)


@SLOWLY
@given(scenes())
def test_it_says_that_it_starts_if_and_only_if_it_does(scene: Scene) -> None:
    started = {workload_id for workload_id, _ in scene.plan().starts}
    for position, one in enumerate(scene.queue, 1):
        told = scene.explain(one)
        assert told.startable_now == (one.workload_id in started)
        assert (told.position, told.queue_length) == (position, len(scene.queue))
        assert told.startable_now or told.reasons


@SLOWLY
@given(scenes(8))
def test_it_expects_the_start_that_comes(scene: Scene) -> None:
    starts = play(scene)
    for one in scene.queue:
        assert scene.explain(one).expected_start_at == starts.get(one.workload_id)


@SLOWLY
@given(scenes(8), st.data())
def test_what_fits_now_starts_when_it_is_asked_instead(scene: Scene, data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(list(scene.queue)))
    told = scene.explain(one)
    if told.fits_now_gpus is None:
        return
    assert told.fits_now is not None
    request = replace(one.request, gpu=parse_gpus(told.fits_now_gpus))
    assert request != one.request
    smaller = replace(one, workload_id="z-new", attempt_id="z-new-1", request=request, submitted_at=NOW)
    others = [other for other in scene.queue if other is not one]
    assert "z-new" in replace(scene, queue=[*others, smaller]).plan().started


@SLOWLY
@given(scenes(6), REQUESTS)
def test_considering_an_ask_says_what_becomes_of_it(scene: Scene, request_: Request) -> None:
    considered = QueuedRequest("", "-1", request_, 0, NOW, None)
    told = scene.explain(considered)
    real = replace(considered, workload_id="z-new", attempt_id="z-new-1")
    queue = [*scene.queue, real]
    started = {workload_id for workload_id, _ in replace(scene, queue=queue).plan().starts}
    assert told.startable_now == ("z-new" in started)
    assert told.queue_length == len(scene.queue) + 1


@SLOWLY
@given(scenes())
def test_the_words_of_a_list_agree_with_the_explanation(scene: Scene) -> None:
    snapshot = scene.snapshot()
    outcome = plan(snapshot, NOW)
    started = outcome.started
    for position, one in enumerate(scene.queue, 1):
        if one.workload_id not in started:
            told = scene.explain(one)
            assert (why_waiting(snapshot, outcome, one, position), told.position) == (told.reasons[0], position)


@SLOWLY
@given(clusters(), REQUESTS)
def test_never_means_never(nodes: list[Node], request_: Request) -> None:
    why = ever_fits(Grid(nodes), request_)
    known = [replace(node, state=NodeState.READY) for node in nodes if node.state is not NodeState.LOST]
    grid = Grid(known)
    possible = not known or bool(grid.fits(grid.shape(request_), np.arange(len(known))).any())
    assert (why is None) == possible


def test_the_bob_who_waits_for_alice() -> None:
    node = factories.node("gpu-1", 1)
    session = replace(held(0, "gpu-1", {"GPU-gpu-1-0": 16 * GIB}), name="session", owner="alice", kind="session")
    bob = queued(1, "12GiB")
    told = Scene(NOW, [node], [session], [bob]).explain(bob)
    assert told.reasons == (
        waiting.InsufficientGpuMemory(
            node="gpu-1",
            total=1,
            gpu="0",
            model=None,
            requested_mib=12 * GIB,
            free_mib=8 * GIB,
            total_mib=24 * GIB,
        ),
    )
    assert (told.fits_now, told.fits_now_gpus) == ("8 GiB of VRAM", "8192MiB")
    assert [(one.owner, one.kind, one.name, one.holds) for one in told.holders] == [
        ("alice", "session", "session", Resources(gpu_memory_mib=16 * GIB))
    ]
    assert told.expected_start_at is None
    assert told.basis == waiting.NoTimeLimitAhead(kind="session", owner="alice")


def test_who_runs_on_a_node_with_a_fault_keeps_nobody_waiting() -> None:
    node = replace(factories.node("gpu-1", 1), state=NodeState.FAULTY, reason="its daemon does not answer")
    told = Scene(NOW, [node], [held(0, "gpu-1")], [queued(1)]).explain(queued(1))
    assert told.reasons == (waiting.NodeFaulty(node="gpu-1", total=1),)
    assert told.holders == ()
    assert told.basis == waiting.NoNodeLargeEnough()


def test_who_only_asks_is_not_told_to_stand_in_the_queue() -> None:
    node = factories.node("n", 1)
    holder = held(0, "n", {"GPU-n-0": 16 * GIB})
    only_asks = replace(queued(2, "0.75"), workload_id="")
    told = Scene(NOW, [node], [holder], [queued(1, "12GiB")]).explain(only_asks)
    assert (told.is_queued, told.position) == (False, 2)
    assert isinstance(told.reasons[0], waiting.InsufficientGpuMemory)
    assert (told.reasons[0].requested_mib, told.reasons[0].free_mib) == (18 * GIB, 8 * GIB)


def test_cpus_that_others_hold() -> None:
    node = replace(factories.node("n", 0), report=replace(factories.node("n", 0).report, cpus_milli=2000))
    big = Request(2000, GIB)
    told = Scene(NOW, [node], [held(0, "n")], [replace(queued(1), request=big)]).explain(
        replace(queued(1), request=big)
    )
    assert told.reasons == (cpus_shortfall(2000, 1000, 2000),)
    assert told.holders[0].holds == Resources(cpus_milli=1000, memory_mib=GIB)


def test_the_start_that_a_time_limit_tells() -> None:
    node = factories.node("gpu-1", 1)
    before = held(0, "gpu-1", {"GPU-gpu-1-0": 16 * GIB}, ends_at=NOW + 600)
    one = queued(1, "12GiB")
    told = Scene(NOW, [node], [before], [one]).explain(one)
    assert told.expected_start_at == NOW + 600
    assert (told.confidence, told.basis) == (Confidence.LIMITS, waiting.EstimateFromTimeLimits())


def test_the_head_may_be_offered_what_was_promised_to_itself() -> None:
    """Its own promise does not stand in its way when it asks for less."""
    node = factories.node("gpu-1", 1)
    before = held(0, "gpu-1", {"GPU-gpu-1-0": 16 * GIB}, ends_at=NOW + 600)
    one = queued(1, "20GiB")
    assert Scene(NOW, [node], [before], [one]).explain(one).fits_now_gpus == "8192MiB"


@pytest.mark.parametrize(
    ("gpus", "cpus", "memory", "shortfalls", "fits_now", "fits_gpus"),
    [
        (None, 9000, GIB, cpus_shortfall(9000, 7000, 8000), "7 CPUs, 1 GiB of memory", None),
        (None, 1000, 40 * GIB, waiting.InsufficientMemory(node="n", total=1, requested_mib=40 * GIB,
         free_mib=31 * GIB, total_mib=32 * GIB), "1 CPU, 31 GiB of memory", None),
        ("2", 1000, GIB, gpus_shortfall(None), "1 whole GPU", "1"),
        ("A100", 1000, GIB, waiting.NoMatchingGpu(node="n", total=1, model="A100"), None, None),
        ("A30:2", 1000, GIB, gpus_shortfall("A30"), "1 whole GPU (A30)", "A30:1"),
        ("6GiB", 8000, GIB, cpus_shortfall(8000, 7000, 8000), "7 CPUs, 1 GiB of memory, 6 GiB of VRAM", None),
    ],
)  # fmt: skip
def test_what_is_lacking_in_numbers(
    gpus: str | None, cpus: int, memory: int, shortfalls: Reason, fits_now: str | None, fits_gpus: str | None
) -> None:
    one = queued(1, gpus, cpus=cpus, memory=memory)
    told = Scene(NOW, [factories.node("n", 2)], [held(0, "n", {"GPU-n-0": 4 * GIB})], [one]).explain(one)
    assert told.reasons[0] == shortfalls
    assert (told.fits_now, told.fits_now_gpus) == (fits_now, fits_gpus)


def test_a_device_without_compute_left() -> None:
    node = factories.node("n", 1)
    busy = held(0, "n")
    share = factories.share(node.report.devices[0], memory_mib=1024, compute_milli=900)
    busy = replace(busy, allocation=replace(busy.allocation, shares=(share,)))
    one = queued(1, "0.25")
    told = Scene(NOW, [node], [busy], [one]).explain(one)
    assert told.reasons == (
        waiting.InsufficientGpuCompute(node="n", total=1, gpu="0", model=None, requested_milli=250, free_milli=100),
    )
    assert told.fits_now_gpus is not None


def test_what_is_free_but_kept() -> None:
    before = held(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 600)
    queue = [queued(1, "20GiB"), queued(2, "8GiB")]
    scene = Scene(NOW, [factories.node("n", 1)], [before], queue)
    assert scene.explain(queue[1]).reasons == (
        waiting.PromisedToOthers(node="n", free=Resources(gpu_memory_mib=8 * GIB), starts_in_s=600),
    )


def test_the_nearest_node_is_named_first() -> None:
    nodes = [
        replace(factories.node("a", 2, state=NodeState.DRAINING), drained_by="root"),
        factories.node("b", 1),
        factories.node("c"),
    ]
    one = queued(1, "2")
    assert Scene(NOW, nodes, [], [one]).explain(one).reasons == (
        waiting.InsufficientGpus(node="b", total=3, model=None, requested=2, free=1, present=1),
        waiting.NodeDraining(node="a", total=3, by="root"),
        waiting.NoMatchingGpu(node="c", total=3, model=None),
    )


def test_before_any_node_reported() -> None:
    one = queued(1)
    scene = Scene(NOW, [], [], [one])
    assert scene.explain(one).reasons == (waiting.NoNodes(),)
    assert why_waiting(scene.snapshot(), scene.plan(), one, 1) == waiting.NoNodes()
    assert ever_fits(Grid(), one.request) is None


def test_one_that_came_after_the_plan_and_fits_lacks_nothing() -> None:
    scene = Scene(NOW, [factories.node("n", 1)], [], [])
    assert why_waiting(scene.snapshot(), scene.plan(), queued(1, "6GiB"), 1) == waiting.InQueue()


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpus", "why"),
    [
        ([factories.node("a")], "1", 1000, refusals.NoGpus()),
        ([factories.node("a", 1)], "H100", 1000, refusals.GpuModelNotFound(model="H100", models=("A30",))),
        ([factories.node("a", 2), factories.node("b", 1)], "4", 1000,
         refusals.TooManyGpus(requested=4, most=2)),
        ([factories.node("a", 1)], "30GiB", 1000,
         refusals.TooMuchGpuMemory(requested_mib=30 * GIB, most_mib=24 * GIB)),
        ([factories.node("a")], None, 9000,
         refusals.RequestTooLarge(request="9 CPUs, 1 GiB of memory", shortfalls=(replace(
             cpus_shortfall(9000, 8000, 8000), node="a", total=1),))),
    ],
)  # fmt: skip
def test_why_it_never_fits(nodes: list[Node], gpus: str | None, cpus: int, why: Reason) -> None:
    assert ever_fits(Grid(nodes), Request(cpus, 1024, parse_gpus(gpus))) == why


def test_a_draining_node_may_come_back_a_lost_one_is_not_counted_on() -> None:
    request = Request(1000, 1024, parse_gpus("1"))
    assert ever_fits(Grid([factories.node("a", 1, state=NodeState.DRAINING)]), request) is None
    assert ever_fits(Grid([factories.node("a", 1, state=NodeState.LOST)]), request) is None
    assert ever_fits(Grid([factories.node("a", 1, state=NodeState.LOST), factories.node("b")]), request) is not None
