from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.reasons.attempts import (
    ClusterAdmissionDenied,
    ClusterQuotaExceeded,
    PlacementDeadlineMissed,
    PodNotStarted,
    PodRefusedByNode,
    PodUnschedulable,
)
from commonage.domain.reasons.nodes import NodeRefusedPods
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.refusals import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    NodeBackoffs,
    Refusal,
    own_clauses,
    refusal_of,
    refusal_of_error,
)

# As kube-scheduler 1.36 says it of a pod with `matchFields metadata.name`.
NO_CPU = (
    "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. no new claims to "
    "deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
)
TAINTED = (
    "0/3 nodes are available: 1 node(s) had untolerated taint {gpu: yes, no}, 2 node(s) didn't match Pod's node "
    "affinity/selector. preemption: not eligible due to preemptionPolicy=Never."
)


def pod(*, bound: bool = False, gated: bool = False, **status: Any) -> Manifest:
    spec: dict[str, Any] = {"containers": [{"name": "main"}]}
    if bound:
        spec["nodeName"] = "n1"
    if gated:
        spec["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    return {"metadata": {"name": "cm-1"}, "spec": spec, "status": {"phase": "Pending", **status}}


def unschedulable(message: str, reason: str = "Unschedulable") -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}]


def read(manifest: Manifest, waited_s: float = 0.0) -> Refusal | None:
    return refusal_of(manifest, "n1", waited_s=waited_s, deadline_s=30.0)


@pytest.mark.parametrize(
    ("message", "own"),
    [
        (NO_CPU, "Insufficient cpu"),
        (TAINTED, "node(s) had untolerated taint {gpu: yes, no}"),
        ("0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [NodeAffinity].", "the node is not there"),
        (
            "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.",
            "Insufficient cpu, Insufficient memory",
        ),
        ('persistentvolumeclaim "home" not found', 'persistentvolumeclaim "home" not found'),
        ("", ""),
    ],
)
def test_keeps_what_the_scheduler_says_of_the_own_node(message: str, own: str) -> None:
    assert own_clauses(message) == own


@given(st.text())
def test_any_message_is_read(message: str) -> None:
    assert not own_clauses(message) or message


def test_an_unschedulable_pod_waits_until_the_deadline_and_then_returns() -> None:
    reason = PodUnschedulable(node="n1", error="Insufficient cpu")
    manifest = pod(conditions=unschedulable(NO_CPU))
    assert read(manifest) == Refusal(reason, is_final=False, is_of_node=True)
    late = read(manifest, 30.0)
    assert late == Refusal(reason, is_final=True, is_of_node=True)
    assert late.returns


def test_a_pod_that_nobody_binds_misses_its_deadline() -> None:
    assert read(pod()) is None
    late = read(pod(), 31.0)
    assert late == Refusal(PlacementDeadlineMissed(node="n1", waited_s=31.0), is_final=True, is_of_node=True)


def test_a_gated_pod_and_a_bound_one_have_no_deadline() -> None:
    assert read(pod(gated=True, conditions=unschedulable("", "SchedulingGated")), 1e6) is None
    assert read(pod(bound=True), 1e6) is None


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 100, used: 0, capacity: 2"),
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource"),
        ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present"),
        ("NodeShutdown", "Pod was rejected as the node is shutting down."),
        ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed"),
    ],
)
def test_a_pod_that_its_kubelet_rejects_returns(reason: str, message: str) -> None:
    found = read(pod(bound=True, phase="Failed", reason=reason, message=message))
    assert found is not None
    assert found.returns
    assert found.reason == PodRefusedByNode(node="n1", error=f"{reason}: {message}")


def test_an_evicted_pod_may_have_run() -> None:
    assert read(pod(bound=True, phase="Failed", reason="Evicted", message="low on resource: memory")) is None


def test_a_pod_that_started_is_no_refusal() -> None:
    running = [{"name": "main", "state": {"running": {"startedAt": "2026-11-24T15:00:00Z"}}}]
    assert read(pod(bound=True, containerStatuses=running), 1e6) is None
    ended = [{"name": "main", "state": {"terminated": {"exitCode": 1, "startedAt": "2026-11-24T15:00:00Z"}}}]
    assert read(pod(bound=True, phase="Failed", reason="OutOfcpu", containerStatuses=ended)) is None


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"])
def test_an_image_that_cannot_be_pulled_fails_at_the_deadline(reason: str) -> None:
    manifest = pod(bound=True, containerStatuses=waiting(reason, "not found"))
    expected = PodNotStarted(node="n1", error=f"{reason}: not found")
    assert read(manifest) == Refusal(expected, is_final=False)
    late = read(manifest, 60.0)
    assert late == Refusal(expected, is_final=True)
    assert not late.returns


def test_an_invalid_image_name_fails_at_once() -> None:
    found = read(pod(bound=True, containerStatuses=waiting("InvalidImageName")))
    assert found == Refusal(PodNotStarted(node="n1", error="InvalidImageName"), is_final=True)


def test_a_used_up_quota_returns_and_a_denied_pod_fails() -> None:
    quota = 'pods "cm-1" is forbidden: exceeded quota: q, requested: cpu=400, used: cpu=100, limited: cpu=300'
    found = refusal_of_error({"kind": "Status", "code": 403, "message": quota}, "n1")
    assert found == Refusal(ClusterQuotaExceeded(error=quota), is_final=True)
    assert found.returns
    policy = 'pods "cm-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
    denied = refusal_of_error({"kind": "Status", "code": 403, "message": policy}, "n1")
    assert denied == Refusal(ClusterAdmissionDenied(error=policy), is_final=True)
    assert not denied.returns
    webhook = 'admission webhook "gatekeeper" denied the request: no'
    assert refusal_of_error({"code": 400, "message": webhook}, "n1") is not None
    assert refusal_of_error({"code": 409, "message": "exists"}, "n1") is None


def test_a_node_is_avoided_for_longer_after_each_refusal_until_a_pod_starts() -> None:
    backoffs, now = NodeBackoffs(), 1000.0
    refusal = Refusal(PodUnschedulable(node="n1", error="x"), is_final=True, is_of_node=True)
    backoffs.refused("n1", refusal, now)
    assert backoffs.fault("n1", now) == NodeRefusedPods(until_at=now + FIRST_BACKOFF_S, cause=refusal.reason)
    assert backoffs.fault("n2", now) is None
    assert backoffs.fault("n1", now + FIRST_BACKOFF_S) is None
    backoffs.refused("n1", refusal, now + 20)
    backoffs.refused("n1", refusal, now + 21)
    assert backoffs.fault("n1", now + 20 + 2 * FIRST_BACKOFF_S - 1) is not None
    assert backoffs.fault("n1", now + 20 + 2 * FIRST_BACKOFF_S) is None
    backoffs.started("n1")
    backoffs.refused("n1", refusal, now + 100)
    assert backoffs.fault("n1", now + 100 + FIRST_BACKOFF_S) is None


def test_avoids_no_node_for_longer_than_the_bound_and_none_for_a_quota() -> None:
    backoffs, now = NodeBackoffs(), 0.0
    backoffs.refused("n1", Refusal(ClusterQuotaExceeded(error="x"), is_final=True), now)
    assert backoffs.fault("n1", now) is None
    for _ in range(20):
        backoffs.refused("n1", Refusal(PodRefusedByNode(node="n1"), is_final=True, is_of_node=True), now)
        now += LONGEST_BACKOFF_S
        assert backoffs.fault("n1", now) is None
