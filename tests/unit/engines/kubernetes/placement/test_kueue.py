from __future__ import annotations

from typing import Any

from commonage.domain.reasons.attempts import KueueStopped, WaitingForKueue
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement import kueue


def pod(**more: Any) -> Manifest:
    return {"metadata": {"name": "cm-1"}, "spec": {"containers": [], "nodeSelector": {"zone": "a"}}, **more}


FLAVOR: Manifest = {
    "metadata": {"name": "a100"},
    "spec": {
        "nodeLabels": {"gpu": "a100"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
PLAIN: Manifest = {"metadata": {"name": "default"}, "spec": {}}
ZONED: Manifest = {"metadata": {"name": "a100-b"}, "spec": {"nodeLabels": {"gpu": "a100", "zone": "b"}}}


def test_a_pod_carries_its_queue_and_the_labels_and_tolerations_of_its_flavor() -> None:
    before = pod()
    assert kueue.queued(before, "physics", FLAVOR) == {
        "metadata": {"name": "cm-1", "labels": {"kueue.x-k8s.io/queue-name": "physics"}},
        "spec": {
            "containers": [],
            "nodeSelector": {"zone": "a", "gpu": "a100"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
    }
    assert before == pod()


def test_the_label_of_a_namespace_names_its_queue_and_else_the_default_queue_counts() -> None:
    namespace: Manifest = {"metadata": {"name": "t"}}
    default = {"metadata": {"name": "default", "namespace": "t"}}
    assert kueue.queue_of(namespace, []) == ""
    assert kueue.queue_of(namespace, [{"metadata": {"name": "default", "namespace": "other"}}]) == ""
    assert kueue.queue_of(namespace, [default]) == "default"
    namespace["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "physics"}
    assert kueue.queue_of(namespace, [default]) == "physics"


def test_a_node_belongs_to_the_flavor_with_the_most_of_its_labels() -> None:
    flavors = [PLAIN, FLAVOR, ZONED]
    assert kueue.flavor_of({"metadata": {"labels": {"gpu": "a100", "zone": "b"}}}, flavors) == ZONED
    assert kueue.flavor_of({"metadata": {"labels": {"gpu": "a100", "zone": "c"}}}, flavors) == FLAVOR
    assert kueue.flavor_of({"metadata": {}}, flavors) == PLAIN
    assert kueue.flavor_of({"metadata": {}}, [FLAVOR]) is None


def test_a_gate_of_kueue_is_a_reason_to_wait() -> None:
    gated = kueue.queued(pod(), "physics")
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    assert kueue.waiting_reason(gated) == WaitingForKueue(queue="physics")
    gated["spec"]["schedulingGates"] = [{"name": "other"}]
    assert kueue.waiting_reason(gated) is None


def test_a_deletion_by_kueue_is_told_with_its_message() -> None:
    condition = {
        "type": "TerminationTarget",
        "status": "True",
        "reason": "StoppedByKueue",
        "message": "Preempted to accommodate a higher priority Workload",
    }
    assert kueue.stop_reason({"conditions": [condition]}) == KueueStopped(error=condition["message"])
    assert kueue.stop_reason({"conditions": [{**condition, "reason": "Other"}]}) is None
