from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.reasons.attempts import (
    ClusterAdmissionDenied,
    ClusterQuotaExceeded,
    PodRefusedByNode,
    PodUnschedulable,
)
from commonage.domain.reasons.nodes import NodeRefusedPods
from commonage.engines.kubernetes.placement.refusals import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    NodeBackoffs,
    own_clauses,
    reason_of_error,
    rejection_of,
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
def test_a_pod_that_its_kubelet_rejects_was_not_placed(reason: str, message: str) -> None:
    status = {"phase": "Failed", "reason": reason, "message": message}
    assert rejection_of(status, "n1") == PodRefusedByNode(node="n1", error=f"{reason}: {message}")


def test_an_evicted_pod_may_have_run() -> None:
    assert rejection_of({"phase": "Failed", "reason": "Evicted", "message": "low on resource: memory"}, "n1") is None


def test_a_used_up_quota_is_no_fault_of_the_pod_and_a_policy_is() -> None:
    quota = 'pods "cm-1" is forbidden: exceeded quota: q, requested: cpu=400, used: cpu=100, limited: cpu=300'
    assert reason_of_error(403, quota) == ClusterQuotaExceeded(error=quota)
    uncounted = 'pods "cm-1" is forbidden: status unknown for quota: q, resources: cpu'
    assert reason_of_error(403, uncounted) == ClusterQuotaExceeded(error=uncounted)
    policy = 'pods "cm-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
    assert reason_of_error(403, policy) == ClusterAdmissionDenied(error=policy)
    webhook = 'admission webhook "gatekeeper" denied the request: no'
    assert reason_of_error(400, webhook) == ClusterAdmissionDenied(error=webhook)
    assert reason_of_error(409, "exists") is None


def test_a_node_is_avoided_for_longer_after_each_refusal_until_a_pod_starts() -> None:
    backoffs, now = NodeBackoffs(), 1000.0
    refusal = PodUnschedulable(node="n1", error="x")
    backoffs.refused("n1", refusal, now)
    assert backoffs.fault("n1", now) == NodeRefusedPods(until_at=now + FIRST_BACKOFF_S, cause=refusal)
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
    backoffs.refused("n1", ClusterQuotaExceeded(error="x"), now)
    assert backoffs.fault("n1", now) is None
    for _ in range(20):
        backoffs.refused("n1", PodRefusedByNode(node="n1"), now)
        now += LONGEST_BACKOFF_S
        assert backoffs.fault("n1", now) is None
