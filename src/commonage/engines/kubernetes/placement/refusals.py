"""Why the cluster does not run a pod on the node of its allocation, with the cluster's own message. Pure.

A reason of the family `NotPlaced` says that nothing of the attempt ran, so that its allocation returns to the queue.
`NodeBackoffs` keeps work off a node that refused some, for longer each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import (
    ClusterAdmissionDenied,
    ClusterQuotaExceeded,
    NotPlaced,
    PlacementDeadlineMissed,
    PodNotPrepared,
    PodRefusedByNode,
    PodUnschedulable,
)
from commonage.domain.reasons.nodes import NodeRefusedPods

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 15.0, 600.0
_AFFINITY = re.compile(r"NodeAffinity|node affinity|node selector", re.ASCII)
_COUNTED = re.compile(r"^\d+ (?=\D)", re.ASCII)
_REJECTED = re.compile(
    r"OutOf.+|Unexpected\w+|Node(Affinity|Name|Ports|Unschedulable)|TaintToleration|\w*AdmissionError"
    r"|TopologyAffinityError|InvalidNodeInfo|PodOS\w+|SysctlForbidden|AppArmor",
    re.ASCII,
)


def own_clauses(message: str) -> str:
    """The scheduler's message without its part about other nodes, which do not matter for a pinned pod."""
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


def rejection_of(status: Mapping[str, Any], node: str) -> NotPlaced | None:
    """Why the kubelet rejected a failed pod. None if the pod may have run, as an evicted one may."""
    why, said = str(status.get("reason") or ""), str(status.get("message") or "")
    if not (_REJECTED.fullmatch(why) or said.startswith("Pod was rejected")):
        return None
    return PodRefusedByNode(node=node, error=": ".join(one for one in (why, said) if one))


def reason_of_error(http_status: int, message: str) -> Reason | None:
    """The reason for the API server's refusal to create a pod; None if neither a quota nor a policy refused it."""
    if http_status == 403 and ("exceeded quota" in message or "status unknown for quota" in message):
        return ClusterQuotaExceeded(error=message)
    if http_status in (403, 422) or "denied the request" in message or "ValidatingAdmissionPolicy" in message:
        return ClusterAdmissionDenied(error=message)
    return None


@dataclass(slots=True)
class _Backoff:
    reason: NotPlaced
    length_s: float
    until: float


class NodeBackoffs:
    """The nodes that refused pods. Each refusal doubles the time; a pod that starts there ends it."""

    def __init__(self) -> None:
        self._of: dict[str, _Backoff] = {}

    def refused(self, node: str, reason: Reason | None, now: float) -> None:
        """Note a refusal; one that is not the node's is ignored."""
        if not isinstance(reason, PodUnschedulable | PodRefusedByNode | PlacementDeadlineMissed | PodNotPrepared):
            return
        before = self._of.get(node)
        if before is not None and now < before.until:
            before.reason = reason  # of a pod that was on its way when the pause began
            return
        length = FIRST_BACKOFF_S if before is None else min(LONGEST_BACKOFF_S, 2 * before.length_s)
        self._of[node] = _Backoff(reason, length, now + length)

    def started(self, node: str) -> None:
        self._of.pop(node, None)

    def fault(self, node: str, now: float) -> Reason | None:
        """The fault to report of the node while it is avoided; None if it is not."""
        found = self._of.get(node)
        if found is None or now >= found.until:
            return None
        return NodeRefusedPods(until_at=found.until, cause=found.reason)
