"""Explanations of small clusters, with all numbers."""

from dataclasses import replace

import pytest
from tests.unit.scheduler.clusters import GIB, NOW, PATIENT, Scene, allocated, queued

from commonage.domain.explanations import Ahead, Confidence, Explanation, JobsAhead, Precedence
from commonage.domain.nodes import NodeState
from commonage.domain.reasons import Reason, waiting
from commonage.domain.reasons.waiting import Resource, Resources
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.tenants import Bounds, Quota, Reservation, Rules, Tenant
from commonage.scheduler.explain import expected_start
from commonage.scheduler.explain.expected_start import BY_FEW, BY_HISTORY, BY_LIMITS, BY_TOTAL_WORK, MAX_AHEAD
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.model.shapes import AllocatedRequest
from commonage.scheduler.queue.durations import ENOUGH, Durations
from commonage.testing import factories


def busy(number: int, gib: int) -> AllocatedRequest:
    return allocated(number, f"n{number}", {f"GPU-n{number}-0": gib * GIB})


def test_nodes_with_equal_shortfalls_are_grouped() -> None:
    nodes = [factories.node(f"n{number}", 1) for number in range(5)]
    nodes += [factories.node(f"d{number}", 1, state=NodeState.DRAINING) for number in range(2)]
    nodes += [factories.node("cpu")]
    request = queued(1, "12GiB")
    explanation = Scene(NOW, nodes, [busy(number, 14 + number) for number in range(5)], [request]).explain(request)
    assert explanation.reasons == (
        waiting.InsufficientGpuMemory(
            node="n0",
            nodes=5,
            total=8,
            gpu="0",
            model=None,
            requested_mib=12 * GIB,
            free_mib=10 * GIB,
            total_mib=24 * GIB,
        ),
        waiting.NodeDraining(node="d0", nodes=2, total=8, by=""),
        waiting.NoMatchingGpu(node="cpu", total=8, model=None),
    )


def test_shortfall_on_numa_nodes() -> None:
    request = queued(1, "2")
    request = replace(request, request=replace(request.request, one_numa=True))
    devices = [factories.device(index, uuid=f"c{index}", numa=index) for index in range(2)]
    explanation = Scene(NOW, [factories.node("n", devices)], [], [request]).explain(request)
    assert explanation.reasons == (
        waiting.InsufficientGpusOnNumaNode(node="n", total=1, model=None, requested=2, free=2, together=1),
    )


def test_jobs_ahead_are_grouped_by_reason() -> None:
    mine = replace(queued(5, "1"), owner="eve", tenant="lab", kind="job")
    urgent = replace(queued(6, "1", priority=10), owner="root", tenant="lab", kind="service")
    older = [replace(queued(number, "1"), owner="ann", tenant="lab", kind="session") for number in range(1, 3)]
    own = replace(queued(0, "1"), owner="eve", tenant="lab", kind="job")
    scene = Scene(
        NOW, [factories.node("n", 1)], [allocated(9, "n", {"GPU-n-0": 24 * GIB})], [mine, urgent, *older, own]
    )
    fair = replace(scene, rules=replace(PATIENT, entry_penalty_s=0.0))
    assert fair.explain(mine).jobs_ahead == (
        JobsAhead(Precedence.PRIORITY, 1, (Ahead("service", "root", "lab"),)),
        JobsAhead(Precedence.OLDER, 2, (Ahead("session", "ann", "lab"),) * 2),
        JobsAhead(Precedence.OWN, 1, (Ahead("job", "eve", "lab"),)),
    )
    assert [(group.precedence, group.count) for group in scene.explain(mine).jobs_ahead] == [
        (Precedence.PRIORITY, 1),
        (Precedence.FAIR_SHARE, 1),
        (Precedence.OLDER, 1),
        (Precedence.OWN, 1),
    ], "each second place is another's; those with as much ahead of them stand by age"


def test_quota_reason_comes_with_a_smaller_request() -> None:
    request = replace(queued(1, "12GiB"), owner="eve", tenant="course")
    rules = replace(PATIENT, tenants=(Tenant("course", quota=Quota(per_user=Bounds(vram_mib=8 * GIB))),))
    explanation = Scene(NOW, [factories.node("n", 1)], [], [request], rules).explain(request)
    assert explanation.reasons == (
        waiting.UserQuotaExceeded(tenant="course", user="eve", resource=Resource.GPU_MEMORY, used=0, limit=8 * GIB),
    )


@pytest.mark.parametrize("tenant", ["course", "lab"])
def test_reservation_reason_names_only_the_own_tenant(tenant: str) -> None:
    request, own = replace(queued(1, "12GiB"), tenant=tenant), tenant == "course"
    kept = Reservation(
        "r", "course", NOW - 60, NOW + 1800, Request(1000, GIB, parse_gpus("20GiB")), 1, "lab class", "zoe"
    )
    explanation = Scene(NOW, [factories.node("n", 1)], [], [request], Rules(reservations=(kept,))).explain(request)
    assert explanation.reasons == (
        waiting.ReservedForOthers(
            node="n",
            free=Resources(gpu_memory_mib=24 * GIB),
            tenant="course" if own else "",
            user="zoe" if own else None,
            title="lab class" if own else "",
            ends_in_s=1800,
        ),
    )
    assert explanation.fits_now_gpus is None or parse_gpus(explanation.fits_now_gpus) != request.request.gpu


def test_gang_shortfall_comes_with_a_request_for_all_members() -> None:
    nodes = [factories.node("n0", 1), factories.node("n1", 1)]
    gang = [replace(queued(number, "16GiB"), gang="g", gang_size=2) for number in (1, 2)]
    explanation = Scene(NOW, nodes, [busy(1, 12)], gang).explain(gang[0])
    assert explanation.reasons[0] == waiting.InsufficientNodes(size=2, nodes=1)
    assert isinstance(explanation.reasons[1], waiting.InsufficientGpuMemory)
    assert (explanation.reasons[1].node, explanation.reasons[1].free_mib) == ("n1", 12 * GIB)
    assert explanation.fits_now_gpus == "12288MiB"
    alone = Scene(NOW, nodes, [], gang[:1]).explain(gang[0])
    assert alone.reasons == (waiting.GangIncomplete(size=2, queued=1),)


def test_nodes_promised_to_a_gang_are_not_promised_to_others_for_its_members() -> None:
    nodes = [factories.node("n0", 1), factories.node("n1", 1)]
    held = allocated(0, "n1", {"GPU-n1-0": 24 * GIB}, ends_at=NOW + 10)
    gang = [replace(queued(number, "16GiB", limit=100), gang="g", gang_size=2) for number in (1, 2)]
    scene = Scene(NOW, nodes, [held], gang)
    assert [type(scene.explain(member).reasons[0]) for member in gang] == [waiting.KeptForQueue] * 2


def waiting_for(durations: list[float], ran_s: float = 0.0) -> Explanation:
    """A request that waits for a session without a time limit; similar sessions took this long."""
    session = replace(allocated(0, "n", {"GPU-n-0": 24 * GIB}), kind="session", owner="ann")
    session = replace(session, allocation=replace(session.allocation, at=NOW - ran_s))
    request = queued(1, "1")
    snapshot = Scene(NOW, [factories.node("n", 1)], [session], [request]).snapshot()
    for seconds in durations:
        snapshot.durations.ended("session", "", "carol", seconds)
    return explain(snapshot, request, NOW)


def test_expected_start_from_past_durations() -> None:
    explanation = waiting_for([600.0 * number for number in range(1, 21)], ran_s=6000.0)
    assert (explanation.confidence, explanation.basis) == (Confidence.LIKELY, BY_HISTORY)
    assert explanation.expected_start_at == NOW + 3600  # half of those that took longer yet
    assert explanation.earliest_start_at == NOW + 1800
    assert explanation.latest_start_at == NOW + 6000


def test_few_durations_give_a_guess_and_none_gives_unknown() -> None:
    explanation = waiting_for([600.0, 1200.0, 1800.0])
    assert (explanation.confidence, explanation.basis) == (Confidence.GUESS, BY_FEW)
    explanation = waiting_for([])
    assert (explanation.confidence, explanation.expected_start_at) == (Confidence.UNKNOWN, None)


def test_durations_of_the_narrowest_known_group_are_used() -> None:
    known = Durations()
    for _ in range(ENOUGH):
        known.ended("job", "torch", "ann", 100.0)
        known.ended("job", "torch", "bob", 900.0)

    def half(owner: str, ran_s: float) -> tuple[float, bool] | None:
        remaining = known.remaining(("job", "torch", owner), ran_s, 0.5)
        return None if remaining is None else (remaining.seconds, remaining.is_confident)

    assert half("ann", 0.0) == (100.0, True)
    assert half("ann", 200.0) == (700.0, True), "it outlived its own kind, and goes on like the rest"
    assert half("carol", 0.0) == (900.0, True)
    assert half("carol", 5000.0) == (5000.0, False), "longer than all: halfway through, as a guess"
    assert known.remaining(("session", "torch", "ann"), 0.0, 0.5) is None


def test_expected_start_far_back_follows_total_work() -> None:
    before = allocated(0, "n", {"GPU-n-0": 24 * GIB}, ends_at=NOW + 600)
    queue = [queued(number, "1", limit=60) for number in range(MAX_AHEAD + 2)]
    explanation = Scene(NOW, [factories.node("n", 1)], [before], queue).explain(queue[-1])
    assert (explanation.confidence, explanation.basis) == (Confidence.GUESS, BY_TOTAL_WORK)
    assert explanation.expected_start_at == NOW + 600 + (MAX_AHEAD + 1) * 60
    endless = [queued(number, "1") for number in range(MAX_AHEAD + 2)]
    explanation = Scene(NOW, [factories.node("n", 1)], [before], endless).explain(endless[-1])
    assert (explanation.confidence, explanation.expected_start_at) == (Confidence.UNKNOWN, None)


@pytest.mark.parametrize(("number", "start", "basis"), [(1, NOW + 900, BY_LIMITS), (9, NOW + 2100, BY_TOTAL_WORK)])
def test_expected_start_on_a_large_cluster_is_the_promise(
    monkeypatch: pytest.MonkeyPatch, number: int, start: float, basis: Reason
) -> None:
    """Only two of nine queued requests get a promise."""
    monkeypatch.setattr(expected_start, "MANY_ALLOCATED", 1)
    monkeypatch.setattr("commonage.scheduler.plan.MAX_PROMISES", 2)
    before = [replace(busy(node, 24), ends_at=NOW + 900) for node in range(2)]
    queue = [queued(place, "1", limit=300) for place in range(1, 10)]
    scene = Scene(NOW, [factories.node(f"n{node}", 1) for node in range(2)], before, queue)
    explanation = scene.explain(queue[number - 1])
    assert (explanation.expected_start_at, explanation.basis) == (start, basis)


def requested_mib(gpus: str, slots: int = 3) -> int:
    """The reported request of a GPU with slots, of which one is free but too small, or none."""
    device = factories.device(uuid="GPU-n-0", slots=slots)
    request = queued(1, gpus)
    scene = Scene(NOW, [factories.node("n", [device])], [allocated(9, "n", {"GPU-n-0": 24 * GIB})], [request])
    (explanation,) = scene.explain(request).reasons
    assert isinstance(explanation, waiting.InsufficientGpuMemory)
    return explanation.requested_mib


def test_shares_rounded_to_the_same_slot_are_explained_alike() -> None:
    assert requested_mib("1/3") == 8 * GIB
    assert requested_mib("4GiB") == 8 * GIB
    assert requested_mib("9GiB") == 16 * GIB
    assert requested_mib("4GiB", slots=0) == 4 * GIB


def test_partitioned_device_is_explained() -> None:
    parts = [factories.device(100 + place, uuid=f"MIG-{place}", parent_uuid="GPU-1") for place in range(2)]
    request = queued(1, "1")
    assert Scene(NOW, [factories.node("n", parts)], [], [request]).explain(request).reasons == (
        waiting.GpuIsPartitioned(node="n", total=1, model=None),
    )
