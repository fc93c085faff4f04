"""Statuses from Pods, as clusters write them."""

from typing import Any

import pytest

from commonage.domain.reasons.attempts import (
    ContainerStartFailed,
    EndedFromOutside,
    EnvironmentFailed,
    EvictedByCluster,
    KueueStopped,
    NodeLost,
    NodeRestarted,
    PodNotPrepared,
    PodRefusedByNode,
    PodUnschedulable,
    PreparingInCluster,
)
from commonage.engines.kubernetes.statuses import (
    Ended,
    Running,
    Surroundings,
    Waiting,
    state_of,
    taken_by_kueue,
    waits_for_files,
    why_lost,
)

AROUND = Surroundings("node1", "torch", 1_800_000_000.4)


def pod(state: dict[str, Any] | None = None, deleted: bool = False, **status: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {"name": "cm-1", "uid": "u"},
        "spec": {"nodeName": "node1", "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running", **status},
    }
    if deleted:
        made["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    if state is not None:
        made["status"]["containerStatuses"] = [{"name": "other", "state": {}}, {"name": "main", "state": state}]
    return made


def terminated(code: int, reason: str = "Error", **more: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": "2027-01-15T08:00:00Z", **more}}


def ended(found: object) -> Ended:
    assert isinstance(found, Ended)
    return found


def test_end_within_the_second_that_the_cluster_tells_is_when_it_was_seen() -> None:
    assert ended(state_of(pod(terminated(3)), AROUND)).exit.at == 1_800_000_000.4
    late = Surroundings("node1", "torch", 1_800_000_009.0)
    assert ended(state_of(pod(terminated(3)), late)).exit.at == 1_800_000_001.0


@pytest.mark.parametrize(
    ("state", "status", "code", "oom", "reason"),
    [
        (terminated(0, "Completed"), {}, 0, False, None),
        (terminated(3), {}, 3, False, None),
        (terminated(143), {}, 143, False, None),
        (terminated(137, "OOMKilled"), {}, 137, True, None),
        (terminated(128, "StartError", message="no such file"), {}, 128, False, ContainerStartFailed),
        (terminated(137, "ContainerStatusUnknown"), {}, None, False, NodeRestarted),
        (terminated(255, "Unknown"), {}, None, False, NodeRestarted),
        (terminated(137), {"deleted": True}, None, False, EndedFromOutside),
        (terminated(0), {"deleted": True}, 0, False, None),
        (terminated(137), {"phase": "Failed", "reason": "Evicted", "message": "low"}, None, False, EvictedByCluster),
        (
            terminated(143),
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "message": "preempted"}]},
            None,
            False,
            EvictedByCluster,
        ),
        (None, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU"}, None, False,
         PodRefusedByNode),
    ],
)  # fmt: skip
def test_ends(
    state: dict[str, Any] | None, status: dict[str, Any], code: int | None, oom: bool, reason: type | None
) -> None:
    found = ended(state_of(pod(state, **status), AROUND)).exit
    assert (found.code, found.oom) == (code, oom)
    assert found.reason is None if reason is None else isinstance(found.reason, reason)


def test_end_that_we_asked_for_is_the_programs_own() -> None:
    stopping = Surroundings("node1", "torch", AROUND.now, stopping=True)
    found = ended(state_of(pod(terminated(143), deleted=True), stopping)).exit
    assert (found.code, found.reason) == (143, None)


def test_running_has_the_address_of_its_pod() -> None:
    state = {"running": {"startedAt": "2027-01-15T08:00:00Z"}}
    assert state_of(pod(state, podIP="10.0.0.7"), AROUND) == Running(1_800_000_000.0, "10.0.0.7")


@pytest.mark.parametrize(
    ("waiting", "final"), [("ErrImagePull", False), ("ImagePullBackOff", False), ("InvalidImageName", True)]
)
def test_missing_image_has_the_clusters_own_words(waiting: str, final: bool) -> None:
    found = state_of(pod({"waiting": {"reason": waiting, "message": "no such image"}}, phase="Pending"), AROUND)
    assert isinstance(found, Waiting)
    assert (found.refusal, found.is_final) == (EnvironmentFailed(environment="torch", error="no such image"), final)


def test_refusal_of_the_clusters_scheduler_has_its_message() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 too full"}
    unbound = pod(phase="Pending", conditions=[condition])
    del unbound["spec"]["nodeName"]
    found = state_of(unbound, AROUND)
    assert isinstance(found, Waiting)
    assert (found.refusal, found.is_bound) == (PodUnschedulable(node="node1", error="too full"), False)


def test_pod_on_its_node_is_being_prepared() -> None:
    found = state_of(pod({"waiting": {"reason": "ContainerCreating"}}, phase="Pending"), AROUND)
    assert found == Waiting(PreparingInCluster(node="node1"), is_bound=True)


@pytest.mark.parametrize(("prepared", "refusal"), [("False", PodNotPrepared(node="node1")), ("True", None)])
def test_pod_whose_volumes_and_claims_are_not_there_has_a_deadline_and_one_that_pulls_has_none(
    prepared: str, refusal: PodNotPrepared | None
) -> None:
    condition = {"type": "PodReadyToStartContainers", "status": prepared}
    waiting = pod({"waiting": {"reason": "ContainerCreating"}}, phase="Pending", conditions=[condition])
    assert state_of(waiting, AROUND) == Waiting(PreparingInCluster(node="node1"), refusal, is_bound=True)


def test_first_container_waits_for_files_while_it_runs() -> None:
    main = {"waiting": {"reason": "PodInitializing"}}
    first = [{"name": "files", "state": {"running": {}}}]
    assert waits_for_files(pod(main, initContainerStatuses=first))
    assert not waits_for_files(pod(main, deleted=True, initContainerStatuses=first))
    assert not waits_for_files(pod(main, initContainerStatuses=[{"name": "files", "state": terminated(0)}]))
    assert not waits_for_files(pod(main))


def test_missing_image_is_told_by_the_first_container() -> None:
    first = [{"name": "files", "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "not here"}}}]
    found = state_of(pod({"waiting": {"reason": "PodInitializing"}}, initContainerStatuses=first), AROUND)
    assert isinstance(found, Waiting)
    assert isinstance(found.refusal, EnvironmentFailed)
    assert found.is_final


def test_node_is_lost_only_if_the_cluster_is_sure() -> None:
    silent = {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}}
    off = {"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}}
    assert why_lost("node1", silent) is None
    assert isinstance(why_lost("node1", off), NodeLost)
    assert isinstance(why_lost("node1", None), NodeLost)


def test_a_pod_that_kueue_took_away_never_ran_only_if_it_was_not_bound() -> None:
    stopped = {"type": "TerminationTarget", "status": "True", "reason": "StoppedByKueue", "message": "Preempted"}
    bound = pod(deleted=True, conditions=[stopped])
    waiting = {**bound, "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}
    reasons = [taken_by_kueue(one, "node1") for one in (waiting, bound, pod(deleted=True))]
    assert reasons == [KueueStopped(error="Preempted"), EvictedByCluster(node="node1", error="Preempted"), None]
    assert [one is not None and one.never_ran for one in reasons] == [True, False, False]
