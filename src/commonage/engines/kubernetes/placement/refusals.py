"""Why the cluster does not run a pod on the node of its allocation, with the cluster's own message. Pure.

A reason of the family `NotPlaced` says that nothing of the attempt ran, so that its allocation returns to the queue.
`NodeBackoffs` keeps work off a node that refused some, for longer each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import (
    ClusterAdmissionDenied,
    ClusterQuotaExceeded,
    NotPlaced,
    PlacementDeadlineMissed,
    PodNotStarted,
    PodRefusedByNode,
    PodUnschedulable,
)
from commonage.domain.reasons.nodes import NodeRefusedPods
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement import kueue

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 15.0, 600.0
_AFFINITY = re.compile(r"NodeAffinity|node affinity|node selector", re.ASCII)
_COUNTED = re.compile(r"^\d+ (?=\D)", re.ASCII)
_REJECTED = re.compile(
    r"OutOf.+|Unexpected\w+|Node(Affinity|Name|Ports|Unschedulable)|TaintToleration|\w*AdmissionError"
    r"|TopologyAffinityError|InvalidNodeInfo|PodOS\w+|SysctlForbidden|AppArmor",
    re.ASCII,
)
# An image or a setting of the environment: another node would answer the same.
_BAD_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_BAD_CONTAINER = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """`is_final`: the pod is to be deleted and the attempt ended now; otherwise it may still start.

    A final one returns to the queue if its reason is a `NotPlaced`, and fails otherwise. `is_of_node`: this node
    refused it, and another one may not.
    """

    reason: Reason
    is_final: bool
    is_of_node: bool = False

    @property
    def returns(self) -> bool:
        return self.is_final and isinstance(self.reason, NotPlaced)


def refusal_of(pod: Manifest, node: str, *, waited_s: float, deadline_s: float) -> Refusal | None:
    """Why a pod whose program has not started does not start; None if it is on its way, or has started.

    `waited_s`: for how long the cluster has had it without a scheduling gate (`ungated_s`). At `deadline_s` a refusal
    becomes final.
    """
    status = pod.get("status") or {}
    if _has_started(status):
        return None
    if status.get("phase") == "Failed":
        return _refused_by_node(status, node)
    if (pod.get("spec") or {}).get("schedulingGates"):
        return None
    late = waited_s >= deadline_s
    bad = _container_refusal(status, node, late=late)
    if bad is not None:
        return bad
    if (pod.get("spec") or {}).get("nodeName"):
        return None
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False" and one.get("reason") == "Unschedulable":
            reason = PodUnschedulable(node=node, error=own_clauses(str(one.get("message") or "")))
            return Refusal(reason, late, is_of_node=True)
    if late:
        return Refusal(PlacementDeadlineMissed(node=node, waited_s=waited_s), is_final=True, is_of_node=True)
    return None


def refusal_of_error(status: Manifest, node: str) -> Refusal | None:
    """What the API server's answer (`kind: Status`) to the creation of a pod means; None if it refused no pod."""
    code, message = int(status.get("code") or 0), str(status.get("message") or "").strip()
    if code == 403 and "exceeded quota" in message:
        return Refusal(ClusterQuotaExceeded(error=message), is_final=True)
    denied = code == 403 or "denied the request" in message or "ValidatingAdmissionPolicy" in message
    if denied or code == 422:
        return Refusal(ClusterAdmissionDenied(error=message), is_final=True)
    return None


def own_clauses(message: str) -> str:
    """The scheduler's message without what it says of other nodes, which a pinned pod never asked for."""
    said = message.partition(" nodes are available: ")[2] or message
    said = re.split(r"\.? ?(?:preemption:|no new claims to deallocate)", said)[0].strip(" .,")
    clauses = [_COUNTED.sub("", one.strip()) for one in _clauses(said) if one.strip()]
    kept = [one for one in clauses if not _AFFINITY.search(one)]
    if kept:
        return ", ".join(kept)
    return "the node is not there" if clauses else message


def _clauses(said: str) -> list[str]:
    """Parts between commas that are in no brackets: `{key: value, other: value}` is one."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(said):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth <= 0:
            found.append(said[start:at])
            start = at + 1
    return [*found, said[start:]]


def _has_started(status: Mapping[str, Any]) -> bool:
    states = [one.get("state") or {} for one in status.get("containerStatuses") or ()]
    return any("running" in one or (one.get("terminated") or {}).get("startedAt") for one in states) or any(
        (one.get("lastState") or {}).get("terminated") for one in status.get("containerStatuses") or ()
    )


def _refused_by_node(status: Mapping[str, Any], node: str) -> Refusal | None:
    """Its kubelet rejected it. None if the pod may have run: an evicted one need not tell of its containers."""
    why, said = str(status.get("reason") or ""), str(status.get("message") or "")
    if not (_REJECTED.fullmatch(why) or said.startswith("Pod was rejected")):
        return None
    error = ": ".join(one for one in (why, said) if one)
    return Refusal(PodRefusedByNode(node=node, error=error), is_final=True, is_of_node=True)


def _container_refusal(status: Mapping[str, Any], node: str, *, late: bool) -> Refusal | None:
    for key in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(key) or ():
            waiting = (one.get("state") or {}).get("waiting") or {}
            why = str(waiting.get("reason") or "")
            if why in _BAD_IMAGE or why in _BAD_CONTAINER or why in _NO_IMAGE:
                error = ": ".join(part for part in (why, str(waiting.get("message") or "")) if part)
                return Refusal(PodNotStarted(node=node, error=error), is_final=late or why in _BAD_IMAGE)
    return None


def ungated_s(pod: Manifest, now: float, ungated_at: float | None = None) -> float:
    """For how long the cluster has been able to place the pod. `ungated_at`: when its last gate was seen to be gone."""
    if kueue.waiting_reason(pod) is not None:
        return 0.0
    created = datetime.fromisoformat(str(pod["metadata"]["creationTimestamp"]).replace("Z", "+00:00")).timestamp()
    return max(0.0, now - (ungated_at or created))


@dataclass(slots=True)
class _Backoff:
    reason: Reason
    length_s: float
    until: float


class NodeBackoffs:
    """The nodes that refused pods. Each refusal doubles the time; a pod that starts there ends it."""

    def __init__(self) -> None:
        self._of: dict[str, _Backoff] = {}

    def refused(self, node: str, refusal: Refusal, now: float) -> None:
        """Note a final refusal; one that does not concern the node is ignored."""
        if not (refusal.is_final and refusal.is_of_node):
            return
        before = self._of.get(node)
        if before is not None and now < before.until:
            before.reason = refusal.reason  # the others that were on their way when it began
            return
        length = FIRST_BACKOFF_S if before is None else min(LONGEST_BACKOFF_S, 2 * before.length_s)
        self._of[node] = _Backoff(refusal.reason, length, now + length)

    def started(self, node: str) -> None:
        self._of.pop(node, None)

    def fault(self, node: str, now: float) -> Reason | None:
        """The fault to report of the node while it is avoided; None if it is not."""
        found = self._of.get(node)
        if found is None or now >= found.until:
            return None
        return NodeRefusedPods(until_at=found.until, cause=found.reason)
