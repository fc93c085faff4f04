"""Pins a pod to the node of its allocation. The scheduler of the cluster still checks taints, volumes and claims there.

`spec.nodeName` would skip these checks. A pod may state `preemptionPolicy: Never` only if its priority class does, so
the installation has one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from commonage.engines.kubernetes.manifest import Manifest

Toleration: TypeAlias = Mapping[str, Any]
"""As in the spec of a pod: `key`, `operator`, `value`, `effect`."""


def priority_class(name: str, value: int = 0) -> Manifest:
    """The priority class of our pods: they preempt nobody, as our scheduler decides who makes room."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "Never",
        "description": "Pods of Commonage. They preempt no other pod.",
    }


def pinned(pod: Manifest, node: str, class_name: str, tolerations: Sequence[Toleration] = ()) -> Manifest:
    """The pod, for this node alone. Affinity and tolerations that it has are kept."""
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    required = (
        spec.setdefault("affinity", {})
        .setdefault("nodeAffinity", {})
        .setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    # One of the terms has to match, so each gets the node.
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*term.get("matchFields", ()), field]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    kept = spec.get("tolerations") or []
    if added := [dict(one) for one in tolerations if one not in kept]:
        spec["tolerations"] = [*kept, *added]
    spec["priorityClassName"] = class_name
    spec["preemptionPolicy"] = "Never"
    return pod


def tolerates(toleration: Toleration, taint: Mapping[str, Any]) -> bool:
    """Whether the toleration matches the taint, for ever: one with `tolerationSeconds` does not."""
    if toleration.get("tolerationSeconds") is not None:
        return False
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
