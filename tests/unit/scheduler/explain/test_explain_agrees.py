"""Explanation and plan agree under all rules."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB, NOW, REQUESTS, Scene, play, scenes

from commonage.domain.explanations import Confidence
from commonage.domain.requests import Request
from commonage.domain.tenants import Bounds, Quota, Reservation, Rules, Tenant
from commonage.scheduler.explain.explain import explain, why_waiting
from commonage.scheduler.fit.filters import FILTERS
from commonage.scheduler.model.shapes import QueuedRequest
from commonage.scheduler.plan import plan

SLOWLY = settings(max_examples=40, deadline=None)
BOUNDS = st.builds(
    Bounds,
    cpus_milli=st.none() | st.integers(0, 16).map(lambda n: n * 1000),
    memory_mib=st.none() | st.integers(0, 32).map(lambda n: n * GIB),
    gpu_milli=st.none() | st.integers(0, 8).map(lambda n: n * 500),
    vram_mib=st.none() | st.integers(0, 64).map(lambda n: n * GIB),
)
QUOTAS = st.builds(Quota, BOUNDS, BOUNDS, BOUNDS, st.just(Bounds()) | BOUNDS)
RESERVATIONS = st.builds(
    Reservation,
    id=st.sampled_from(["r1", "r2"]),
    tenant=st.sampled_from(["lab-0", "lab-1", "class"]),
    starts_at=st.sampled_from([NOW - 20, NOW + 5, NOW + 50]),
    ends_at=st.just(NOW + 90),
    request=REQUESTS,
    count=st.integers(1, 3),
)


@st.composite
def ruled(draw: st.DrawFn, most: int = 8) -> Scene:
    """A scene in which any rule may delay a request."""
    scene = draw(scenes(most, users=3, gangs=True))
    tenants = tuple(Tenant(f"lab-{number}", quota=draw(QUOTAS)) for number in range(draw(st.integers(0, 2))))
    reservations = draw(st.lists(RESERVATIONS, max_size=2, unique_by=lambda one: one.id))
    head_of_queue_timeout = draw(st.sampled_from([1e9, 0.0]))
    rules = Rules(tenants, tuple(reservations), policy="best-fit", head_of_queue_timeout_s=head_of_queue_timeout)
    return replace(scene, rules=rules)


def instead(scene: Scene, queued: QueuedRequest, request: Request) -> Scene:
    """The scene in which an ask, or each of its gang, asks for something else, as of now."""
    mine = [member for member in scene.queue if member is queued or (queued.gang and member.gang == queued.gang)]
    others = [member for member in scene.queue if member not in mine]
    return replace(scene, queue=[*others, *(replace(member, request=request, submitted_at=NOW) for member in mine)])


@SLOWLY
@given(ruled())
def test_position_start_and_shortfall_agree_with_the_plan(scene: Scene) -> None:
    snapshot = scene.snapshot()
    outcome = plan(snapshot, NOW)
    queued_requests = [snapshot.queue.queued_requests[slot] for slot in outcome.order.slots.tolist()]
    for place, request in enumerate(queued_requests):
        assert request is not None
        explanation = explain(snapshot, request, NOW)
        assert (explanation.position, explanation.queue_length) == (place + 1, len(queued_requests))
        assert explanation.startable_now == (request.workload_id in outcome.started)
        assert sum(ahead.count for ahead in explanation.jobs_ahead) == (0 if explanation.startable_now else place)
        assert explanation.startable_now or explanation.reasons, "who waits lacks something"
        if not explanation.startable_now:
            assert explanation.reasons[0] == why_waiting(snapshot, outcome, request, place + 1)


@SLOWLY
@given(ruled(), st.data())
def test_suggested_smaller_request_starts_under_any_rules(scene: Scene, data: st.DataObject) -> None:
    request = data.draw(st.sampled_from(list(scene.queue)))
    explanation = scene.explain(request)
    if explanation.fits_now_request is not None:
        assert explanation.fits_now_request != request.request
        assert request.workload_id in instead(scene, request, explanation.fits_now_request).plan().started


@SLOWLY
@given(scenes(8, gangs=True))
def test_estimate_by_time_limits_is_an_upper_bound(scene: Scene) -> None:
    starts = play(scene)
    for request in scene.queue:
        explanation = scene.explain(request)
        if explanation.confidence is Confidence.LIMITS:
            assert explanation.expected_start_at is not None
            assert explanation.expected_start_at <= starts[request.workload_id]
            assert (explanation.earliest_start_at or 0) <= explanation.expected_start_at


@SLOWLY
@given(scenes(1), REQUESTS)
def test_filters_agree_for_all_nodes_and_each_node(scene: Scene, request_: Request) -> None:
    grid = scene.grid()
    shape = grid.shape(request_)
    for number in range(len(grid.nodes)):
        for condition in FILTERS:
            refused = condition.refusal(grid, shape, number) is not None
            assert refused != bool(condition.passes(grid, shape, np.array([number]))[0])
            if refused:
                break
