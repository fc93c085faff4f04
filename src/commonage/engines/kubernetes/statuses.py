"""The status of an attempt, from its Pod: waiting, running or ended, and why. Pure; used by the engine.

The cluster's times are whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import (
    ClusterWithdrew,
    ContainerStartFailed,
    EndedFromOutside,
    EnvironmentFailed,
    EvictedByCluster,
    ExternalActor,
    NodeLost,
    NodeOutOfService,
    NodeRemovedFromCluster,
    NodeRestarted,
    PlacementDeadlineMissed,
    PodNotPrepared,
    PodUnschedulable,
    PreparingInCluster,
    PullingImage,
    WaitingForCluster,
)
from commonage.engines.kubernetes.manifest import Manifest, has_ended
from commonage.engines.kubernetes.placement import kueue
from commonage.engines.kubernetes.placement.refusals import own_clauses, rejection_of
from commonage.engines.kubernetes.translate import CONTAINER, FILES
from commonage.engines.rundir.runs import Exit

_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable"})
_NEVER_AN_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_NEVER_A_CONTAINER = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "CreateContainerError"})
_UNKNOWN = frozenset({"ContainerStatusUnknown", "Unknown"})
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_PREPARED = "PodReadyToStartContainers"
"""False until its claims of devices are prepared, its volumes mounted and its network set up. Then images are pulled,
which may take long."""
_SIGNALLED = frozenset({137, 143})


@dataclass(frozen=True, slots=True)
class Waiting:
    """It has not started. `refusal`: why it cannot; the engine decides how long that may last.

    `is_bound`: the cluster gave it to its node, so that its program may start at any time.
    """

    reason: Reason
    refusal: Reason | None = None
    is_final: bool = False
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    started_at: float | None
    address: str | None


@dataclass(frozen=True, slots=True)
class Ended:
    exit: Exit
    started_at: float | None


PodState: TypeAlias = Waiting | Running | Ended


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Context in which a Pod is judged. `now`: unix seconds. `stopping`: we requested its end."""

    node: str
    environment: str
    now: float
    stopping: bool = False


def instant(text: str | None) -> float | None:
    """The cluster's time as unix seconds."""
    return None if not text else datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def state_of(pod: Manifest, around: Surroundings) -> PodState:
    status = pod.get("status") or {}
    container = main_status(pod)
    state: Mapping[str, Any] = container.get("state") or {}
    if ended := state.get("terminated"):
        return Ended(_exit_of(pod, ended, around), instant(ended.get("startedAt")))
    if has_ended(pod):
        return Ended(_refused(status, around), None)
    if running := state.get("running"):
        return Running(instant(running.get("startedAt")), status.get("podIP"))
    first = (files_status(pod).get("state") or {}).get("waiting")
    return _waiting(pod, status, first or state.get("waiting") or {}, around)


def waits_for_files(pod: Manifest) -> bool:
    return "running" in (files_status(pod).get("state") or {}) and not pod["metadata"].get("deletionTimestamp")


def files_status(pod: Manifest) -> Mapping[str, Any]:
    found = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return next((one for one in found if one["name"] == FILES), {})


def main_status(pod: Manifest) -> Mapping[str, Any]:
    found = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((one for one in found if one["name"] == CONTAINER), {})


def _exit_of(pod: Manifest, ended: Mapping[str, Any], around: Surroundings) -> Exit:
    """The end of its program. The cluster's time is truncated to seconds, so the time of observation may be closer."""
    code, reason = int(ended["exitCode"]), str(ended.get("reason", ""))
    second = instant(ended.get("finishedAt"))
    at = around.now if second is None else min(around.now, second + 1.0)
    status = pod.get("status") or {}
    if reason in _NOT_STARTED:
        error = str(ended.get("message") or reason)
        return Exit(code or 1, ContainerStartFailed(node=around.node, error=error), at)
    if reason in _UNKNOWN:
        return Exit(None, NodeRestarted(node=around.node), at)
    if why := _evicted(status, around):
        return Exit(None, why, at)
    if (
        code in _SIGNALLED
        and not around.stopping
        and pod["metadata"].get("deletionTimestamp")
        and reason != "OOMKilled"
    ):
        return Exit(None, EndedFromOutside(by=ExternalActor.KUBERNETES, node=around.node), at)
    return Exit(code, None, at, oom=reason == "OOMKilled" and code != 0)


def _evicted(status: Mapping[str, Any], around: Surroundings) -> Reason | None:
    """Why the cluster ended a Pod; None if it did not."""
    if around.stopping:
        return None
    if stopped := kueue.stop_reason(status):
        return stopped
    for one in status.get("conditions") or ():
        if one["type"] == "DisruptionTarget" and one["status"] == "True":
            error = str(one.get("message") or one.get("reason") or "")
            return EvictedByCluster(node=around.node, error=error)
    if status.get("phase") == "Failed" and status.get("reason"):
        error = str(status.get("message") or status["reason"])
        return EvictedByCluster(node=around.node, error=error)
    return None


def taken_by_kueue(pod: Manifest, node: str) -> Reason | None:
    """Why Kueue stopped a Pod that is gone; None if it did not. A bound Pod may have run, even if it was never seen
    running.
    """
    stopped = kueue.stop_reason(pod.get("status") or {})
    if stopped is None or not pod["spec"].get("nodeName"):
        return stopped
    return EvictedByCluster(node=node, error=stopped.error)


def _refused(status: Mapping[str, Any], around: Surroundings) -> Exit:
    """The end of a Pod whose program was not started, or of which nothing is known: its node refused or lost it."""
    if rejected := rejection_of(status, around.node):
        return Exit(None, rejected, around.now)
    error = ": ".join(str(one) for one in (status.get("reason"), status.get("message")) if one)
    return Exit(None, ClusterWithdrew(node=around.node, error=error or "its node gave no reason"), around.now)


def _waiting(pod: Manifest, status: Mapping[str, Any], waiting: Mapping[str, Any], around: Surroundings) -> Waiting:
    bound = bool(pod["spec"].get("nodeName"))
    reason, said = str(waiting.get("reason", "")), str(waiting.get("message") or waiting.get("reason", ""))
    image = str(pod["spec"]["containers"][0].get("image", ""))
    if reason in _NEVER_AN_IMAGE:
        failed = EnvironmentFailed(environment=around.environment, error=said)
        return Waiting(PullingImage(image=image, step=said), failed, is_final=True, is_bound=bound)
    if reason in _NO_IMAGE:
        failed = EnvironmentFailed(environment=around.environment, error=said)
        return Waiting(PullingImage(image=image, step=said), failed, is_bound=bound)
    if reason in _NEVER_A_CONTAINER:
        failure = ContainerStartFailed(node=around.node, error=said)
        return Waiting(WaitingForCluster(error=said), failure, is_bound=bound)
    if gate := kueue.waiting_reason(pod):
        return Waiting(gate)
    conditions = status.get("conditions") or ()
    if bound:
        unprepared = any(one["type"] == _PREPARED and one["status"] == "False" for one in conditions)
        late = PodNotPrepared(node=around.node) if unprepared else None
        return Waiting(PreparingInCluster(node=around.node), late, is_bound=True)
    for one in conditions:
        if one["type"] == "PodScheduled" and one["status"] == "False" and one.get("reason") == "Unschedulable":
            error = str(one.get("message", ""))
            refusal = PodUnschedulable(node=around.node, error=own_clauses(error))
            return Waiting(WaitingForCluster(error=refusal.error), refusal)
    return Waiting(WaitingForCluster(), PlacementDeadlineMissed(node=around.node))


def why_lost(node: str, description: Manifest | None) -> Reason | None:
    """Why nothing runs on the node any more, according to the cluster; None if that is not certain.

    A node that only does not answer may still run its Pods.
    """
    if description is None:
        return NodeLost(node=node, cause=NodeRemovedFromCluster(node=node))
    taints = description["spec"].get("taints") or ()
    if any(one["key"] == _OUT_OF_SERVICE for one in taints):
        return NodeLost(node=node, cause=NodeOutOfService(node=node))
    return None
