"""Promises, protected nodes, and nodes reserved for the head of the queue."""

from dataclasses import replace

import pytest
from tests.unit.scheduler.clusters import GIB, NOW, Scene, allocated, queued

from commonage.domain.tenants import Rules
from commonage.scheduler import plan as plan_module
from commonage.scheduler.model.shapes import QueuedRequest
from commonage.testing import factories

PATIENT = Rules(policy="best-fit", head_of_queue_timeout_s=600.0)


def promised(scene: Scene) -> dict[str, float | None]:
    return {name: promise.at for name, promise in scene.plan().promises.items()}


def started(scene: Scene) -> list[str]:
    return list(scene.plan().started)


def test_promises_respect_earlier_promises() -> None:
    busy = [allocated(number, "n", {f"GPU-n-{number}": 24 * GIB}, ends_at=NOW + 100 + number) for number in range(2)]
    queue = [queued(number, "1", limit=50) for number in range(4)]
    scene = Scene(NOW, [factories.node("n", 2)], busy, queue)
    assert list(promised(scene).values()) == [NOW + 100, NOW + 101, NOW + 150, NOW + 151]


def test_gang_is_promised_the_time_when_all_members_fit() -> None:
    nodes = [factories.node(name, 1) for name in "abc"]
    busy = [allocated(index, node.name, {f"GPU-{node.name}-0": 24 * GIB}, ends_at=NOW + 100 * index) for index, node in
            enumerate(nodes, 1)]  # fmt: skip
    gang = [replace(queued(number, "1", limit=50), gang="g", gang_size=2) for number in range(2)]
    outcome = Scene(NOW, nodes, busy, gang).plan()
    (promise,) = outcome.promises.values()
    assert (promise.at, [allocation.node for allocation in promise.allocations]) == (NOW + 200, ["a", "b"])


def test_incomplete_gang_gets_no_promise() -> None:
    gang = replace(queued(0, "1"), gang="g", gang_size=2)
    assert promised(Scene(NOW, [factories.node("a", 1), factories.node("b", 1)], [], [gang])) == {}


@pytest.mark.parametrize(("limit", "starts"), [(100, True), (101, False), (None, False)])
def test_behind_promises_only_runs_that_end_first_start(
    limit: int | None, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "MAX_PROMISES", 0)
    busy = [allocated(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 100), allocated(1, "n", ends_at=NOW + 300)]
    scene = Scene(NOW, [factories.node("n", 1)], busy, [queued(1, "12GiB"), queued(2, "4GiB", limit=limit)])
    assert started(scene) == (["w000000000002"] if starts else [])


def test_unprotected_nodes_take_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "MAX_PROMISES", 0)
    busy = allocated(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 100)
    nodes = [factories.node("n", 1), factories.node("without")]
    assert started(Scene(NOW, nodes, [busy], [queued(1, "12GiB"), queued(2)])) == ["w000000000002"]


def waiting_in_vain(for_s: float) -> list[QueuedRequest]:
    """A large request that has waited this long, and a small one behind it."""
    large, small = queued(1, "2"), queued(2, "0.5")
    return [replace(large, submitted_at=NOW - for_s), replace(small, submitted_at=NOW - for_s + 1)]


@pytest.mark.parametrize(("for_s", "keeps"), [(599, False), (601, True)])
def test_node_is_reserved_for_the_head_after_the_timeout(for_s: float, keeps: bool) -> None:
    """The end of the running workloads is unknown; nothing new starts where the large request needs the GPUs."""
    busy = allocated(0, "n", {"GPU-n-0": 12 * GIB})
    outcome = Scene(NOW, [factories.node("n", 2)], [busy], waiting_in_vain(for_s), PATIENT).plan()
    assert list(outcome.started) == ([] if keeps else ["w000000000002"])
    assert {name: promise.at for name, promise in outcome.promises.items()} == (
        {"w000000000001": None} if keeps else {}
    )


def test_node_is_reserved_where_least_must_end() -> None:
    busy = [allocated(number, "a", {f"GPU-a-{number}": 24 * GIB}) for number in range(2)]
    busy.append(allocated(2, "b", {"GPU-b-0": 4 * GIB}))
    nodes = [factories.node("a", 2), factories.node("b", 2)]
    outcome = Scene(NOW, nodes, busy, waiting_in_vain(601), PATIENT).plan()
    (promise,) = outcome.promises.values()
    assert [allocation.node for allocation in promise.allocations] == ["b"]
    assert outcome.started == {}


def test_requests_start_next_to_reserved_capacity_of_the_head() -> None:
    """Of three GPUs two are wanted: on the third something may start."""
    busy = allocated(0, "n", {"GPU-n-0": 12 * GIB, "GPU-n-1": 12 * GIB})
    outcome = Scene(NOW, [factories.node("n", 3)], [busy], waiting_in_vain(601), PATIENT).plan()
    (allocation,) = (request.allocation for request in outcome.started.values())
    (promise,) = outcome.promises.values()
    kept = {share.device_uuid for share in promise.allocations[0].shares}
    assert allocation.shares[0].device_uuid not in kept
