from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB, NOW, REQUESTS, Scene, allocated, clusters, play, queued, scenes

from commonage.domain.explanations import Confidence
from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons import Reason, refusals, waiting
from commonage.domain.reasons.nodes import NotReporting, SiteUnreachable
from commonage.domain.reasons.waiting import Resources
from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.explain.explain import ever_fits, why_waiting
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import QueuedRequest
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
def test_explanation_says_starts_now_exactly_if_the_plan_starts_it(scene: Scene) -> None:
    started = {workload_id for workload_id, _ in scene.plan().starts}
    for position, request in enumerate(scene.queue, 1):
        explanation = scene.explain(request)
        assert explanation.startable_now == (request.workload_id in started)
        assert (explanation.position, explanation.queue_length) == (position, len(scene.queue))
        assert explanation.startable_now or explanation.reasons


@SLOWLY
@given(scenes(8))
def test_expected_start_is_the_actual_start(scene: Scene) -> None:
    starts = play(scene)
    for request in scene.queue:
        assert scene.explain(request).expected_start_at == starts.get(request.workload_id)


@SLOWLY
@given(scenes(8), st.data())
def test_suggested_smaller_request_starts(scene: Scene, data: st.DataObject) -> None:
    original = data.draw(st.sampled_from(list(scene.queue)))
    explanation = scene.explain(original)
    if explanation.fits_now_gpus is None:
        return
    assert explanation.fits_now is not None
    request = replace(original.request, gpu=parse_gpus(explanation.fits_now_gpus))
    assert request != original.request
    smaller = replace(original, workload_id="z-new", request=request, submitted_at=NOW)
    others = [other for other in scene.queue if other is not original]
    assert "z-new" in replace(scene, queue=[*others, smaller]).plan().started


@SLOWLY
@given(scenes(6), REQUESTS)
def test_explanation_of_a_considered_request_agrees_with_its_submission(scene: Scene, request_: Request) -> None:
    considered = QueuedRequest("", request_, 0, NOW, None)
    explanation = scene.explain(considered)
    real = replace(considered, workload_id="z-new")
    queue = [*scene.queue, real]
    started = {workload_id for workload_id, _ in replace(scene, queue=queue).plan().starts}
    assert explanation.startable_now == ("z-new" in started)
    assert explanation.queue_length == len(scene.queue) + 1


@SLOWLY
@given(scenes())
def test_list_reason_agrees_with_the_explanation(scene: Scene) -> None:
    snapshot = scene.snapshot()
    outcome = plan(snapshot, NOW)
    started = outcome.started
    for position, request in enumerate(scene.queue, 1):
        if request.workload_id not in started:
            explanation = scene.explain(request)
            assert why_waiting(snapshot, outcome, request, position) == explanation.reasons[0]
            assert explanation.position == position


@SLOWLY
@given(clusters(), REQUESTS)
def test_request_that_never_fits_is_refused(nodes: list[Node], request_: Request) -> None:
    why = ever_fits(Grid(nodes), request_)
    known = [replace(node, state=NodeState.READY) for node in nodes if node.state is not NodeState.LOST]
    grid = Grid(known)
    possible = not known or bool(grid.fits(grid.shape(request_), np.arange(len(known))).any())
    assert (why is None) == possible


def test_shortfall_names_the_holder_and_a_smaller_request() -> None:
    node = factories.node("gpu-1", 1)
    session = replace(allocated(0, "gpu-1", {"GPU-gpu-1-0": 16 * GIB}), name="session", owner="alice", kind="session")
    bob = queued(1, "12GiB")
    explanation = Scene(NOW, [node], [session], [bob]).explain(bob)
    assert explanation.reasons == (
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
    assert (explanation.fits_now, explanation.fits_now_gpus) == ("8 GiB of VRAM", "8192MiB")
    assert [(holder.owner, holder.kind, holder.name, holder.holds) for holder in explanation.holders] == [
        ("alice", "session", "session", Resources(gpu_memory_mib=16 * GIB))
    ]
    assert explanation.expected_start_at is None
    assert explanation.basis == waiting.NoTimeLimitAhead(kind="session", owner="alice")


def test_workloads_on_faulty_nodes_are_not_holders() -> None:
    node = replace(factories.node("gpu-1", 1), state=NodeState.FAULTY, reasons=(NotReporting(),))
    explanation = Scene(NOW, [node], [allocated(0, "gpu-1")], [queued(1)]).explain(queued(1))
    assert explanation.reasons == (waiting.NodeFaulty(node="gpu-1", total=1),)
    assert explanation.holders == ()
    assert explanation.basis == waiting.NoNodeLargeEnough()


def test_considered_request_is_not_shown_as_queued() -> None:
    node = factories.node("n", 1)
    holder = allocated(0, "n", {"GPU-n-0": 16 * GIB})
    only_asks = replace(queued(2, "0.75"), workload_id="")
    explanation = Scene(NOW, [node], [holder], [queued(1, "12GiB")]).explain(only_asks)
    assert (explanation.is_queued, explanation.position) == (False, 2)
    assert isinstance(explanation.reasons[0], waiting.InsufficientGpuMemory)
    assert (explanation.reasons[0].requested_mib, explanation.reasons[0].free_mib) == (18 * GIB, 8 * GIB)


def test_holders_of_cpus_are_named() -> None:
    node = replace(factories.node("n", 0), report=replace(factories.node("n", 0).report, cpus_milli=2000))
    big = Request(2000, GIB)
    explanation = Scene(NOW, [node], [allocated(0, "n")], [replace(queued(1), request=big)]).explain(
        replace(queued(1), request=big)
    )
    assert explanation.reasons == (cpus_shortfall(2000, 1000, 2000),)
    assert explanation.holders[0].holds == Resources(cpus_milli=1000, memory_mib=GIB)


def test_expected_start_follows_the_time_limit() -> None:
    node = factories.node("gpu-1", 1)
    before = allocated(0, "gpu-1", {"GPU-gpu-1-0": 16 * GIB}, ends_at=NOW + 600)
    request = queued(1, "12GiB")
    explanation = Scene(NOW, [node], [before], [request]).explain(request)
    assert explanation.expected_start_at == NOW + 600
    assert (explanation.confidence, explanation.basis) == (Confidence.LIMITS, waiting.EstimateFromTimeLimits())


def test_head_of_queue_may_use_its_own_promise() -> None:
    """Its own promise does not stand in its way when it asks for less."""
    node = factories.node("gpu-1", 1)
    before = allocated(0, "gpu-1", {"GPU-gpu-1-0": 16 * GIB}, ends_at=NOW + 600)
    request = queued(1, "20GiB")
    assert Scene(NOW, [node], [before], [request]).explain(request).fits_now_gpus == "8192MiB"


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
def test_shortfall_has_requested_and_free_amounts(
    gpus: str | None, cpus: int, memory: int, shortfalls: Reason, fits_now: str | None, fits_gpus: str | None
) -> None:
    request = queued(1, gpus, cpus=cpus, memory=memory)
    explanation = Scene(NOW, [factories.node("n", 2)], [allocated(0, "n", {"GPU-n-0": 4 * GIB})], [request]).explain(
        request
    )
    assert explanation.reasons[0] == shortfalls
    assert (explanation.fits_now, explanation.fits_now_gpus) == (fits_now, fits_gpus)


def test_shortfall_of_compute() -> None:
    node = factories.node("n", 1)
    busy = allocated(0, "n")
    share = factories.share(node.report.devices[0], memory_mib=1024, compute_milli=900)
    busy = replace(busy, allocation=replace(busy.allocation, shares=(share,)))
    request = queued(1, "0.25")
    explanation = Scene(NOW, [node], [busy], [request]).explain(request)
    assert explanation.reasons == (
        waiting.InsufficientGpuCompute(node="n", total=1, gpu="0", model=None, requested_milli=250, free_milli=100),
    )
    assert explanation.fits_now_gpus is not None


def test_free_capacity_reserved_for_others_is_explained() -> None:
    before = allocated(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 600)
    queue = [queued(1, "20GiB"), queued(2, "8GiB")]
    scene = Scene(NOW, [factories.node("n", 1)], [before], queue)
    assert scene.explain(queue[1]).reasons == (
        waiting.PromisedToOthers(node="n", free=Resources(gpu_memory_mib=8 * GIB), starts_in_s=600),
    )


def test_closest_node_is_named_first() -> None:
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


def test_no_nodes_reason_before_any_report() -> None:
    one = queued(1)
    scene = Scene(NOW, [], [], [one])
    assert scene.explain(one).reasons == (waiting.NoNodes(),)
    assert why_waiting(scene.snapshot(), scene.plan(), one, 1) == waiting.NoNodes()
    assert ever_fits(Grid(), one.request) is None


def test_request_after_the_plan_that_fits_has_no_shortfall() -> None:
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
         refusals.TooMuchGpuMemory(requested_mib=30 * GIB, max_mib=24 * GIB)),
        ([factories.node("a")], None, 9000,
         refusals.RequestTooLarge(request="9 CPUs, 1 GiB of memory", shortfalls=(replace(
             cpus_shortfall(9000, 8000, 8000), node="a", total=1),))),
    ],
)  # fmt: skip
def test_reason_why_a_request_never_fits(nodes: list[Node], gpus: str | None, cpus: int, why: Reason) -> None:
    assert ever_fits(Grid(nodes), Request(cpus, 1024, parse_gpus(gpus))) == why


def test_node_of_an_unreachable_site_counts_because_it_returns() -> None:
    lost = factories.node("a", 1, state=NodeState.LOST)
    away = replace(lost, report=replace(lost.report, gone=True, awaits_admin=SiteUnreachable(site="east", since=1.0)))
    assert ever_fits(Grid([away, factories.node("b")]), Request(1000, 1024, parse_gpus("1"))) is None


def test_draining_nodes_count_and_lost_nodes_do_not() -> None:
    request = Request(1000, 1024, parse_gpus("1"))
    assert ever_fits(Grid([factories.node("a", 1, state=NodeState.DRAINING)]), request) is None
    assert ever_fits(Grid([factories.node("a", 1, state=NodeState.LOST)]), request) is None
    assert ever_fits(Grid([factories.node("a", 1, state=NodeState.LOST), factories.node("b")]), request) is not None
