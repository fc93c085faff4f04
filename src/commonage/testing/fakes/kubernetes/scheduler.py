"""Binds Pods to nodes by affinity to a node's name, taints, CPU and memory; refusals are kube-scheduler's own texts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.quantities import milli
from commonage.testing.fakes.kubernetes.store import NODES, PODS, Change, Store, key_of, now

_AFFINITY = "node(s) didn't satisfy plugin(s) [NodeAffinity]"


class Scheduler:
    """Acts at each change of a Pod or node."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.listen(self._changed)

    def _changed(self, change: Change) -> None:
        if change.kind is NODES or (change.kind is PODS and change.after is None):
            pods = list(self._store.all(PODS))
        elif change.kind is PODS and change.after is not None:
            ended = change.after["status"]["phase"] in ("Succeeded", "Failed")
            pods = list(self._store.all(PODS)) if ended else [change.after]
        else:
            return
        for pod in pods:
            if not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp"):
                self._place(pod)

    def _place(self, pod: Manifest) -> None:
        current = self._store.find(PODS, key_of(pod))
        if current is None or current["spec"].get("nodeName"):
            return
        if current["spec"].get("schedulingGates"):
            self._refuse(current, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
            return
        why: Counter[str] = Counter()
        nodes = list(self._store.all(NODES))
        for node in nodes:
            refusals = self._refusals(node, current)
            if not refusals:
                self._bind(current, node["metadata"]["name"])
                return
            why.update(refusals)
        total = f"0/{len(nodes)} nodes are available"
        clauses = ", ".join(f"{number} {clause}" for clause, number in sorted(why.items()))
        self._refuse(
            current,
            "Unschedulable",
            f"{total}: {clauses}. no new claims to deallocate, preemption: {total}: {len(nodes)} Preemption is not "
            "helpful for scheduling.",
        )

    def _refusals(self, node: Manifest, pod: Manifest) -> list[str]:
        spec = node.get("spec") or {}
        if not _is_wanted(pod, node["metadata"]["name"]):
            return [_AFFINITY]
        if spec.get("unschedulable"):
            return ["node(s) were unschedulable"]
        tolerations = pod["spec"].get("tolerations") or ()
        for taint in spec.get("taints") or ():
            if taint["effect"] != "PreferNoSchedule" and not any(_tolerates(one, taint) for one in tolerations):
                return [f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}"]
        used: Counter[str] = Counter()
        for other in self._store.all(PODS):
            if other["spec"].get("nodeName") == node["metadata"]["name"] and other["status"]["phase"] in (
                "Pending",
                "Running",
            ):
                used.update(_requests(other))
        has = node["status"]["allocatable"]
        return [
            f"Insufficient {name}"
            for name, wanted in sorted(_requests(pod).items())
            if wanted and used[name] + wanted > milli(has.get(name, 0))
        ]

    def _bind(self, pod: Manifest, node: str) -> None:
        conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}]
        status = pod["status"] | {"conditions": conditions}
        self._store.change(PODS, key_of(pod), spec=pod["spec"] | {"nodeName": node}, status=status)

    def _refuse(self, pod: Manifest, reason: str, message: str) -> None:
        before = next((one for one in pod["status"].get("conditions") or () if one["type"] == "PodScheduled"), None)
        if before is not None and (before.get("reason"), before.get("message")) == (reason, message):
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        conditions = [condition | {"lastTransitionTime": now()}]
        self._store.change(PODS, key_of(pod), status=pod["status"] | {"conditions": conditions})


def _is_wanted(pod: Manifest, node: str) -> bool:
    """Only affinity to names is known."""
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity is None:
        return True
    return any(
        all(field["operator"] == "In" and node in field["values"] for field in term.get("matchFields") or ())
        for term in affinity["nodeSelectorTerms"]
    )


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    if toleration.get("effect") not in (None, taint["effect"]) or toleration.get("key") not in (None, taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _requests(pod: Manifest) -> Counter[str]:
    """Of the containers that run together; each init container runs alone before."""
    total: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        total.update(_of(container))
    for container in pod["spec"].get("initContainers") or ():
        total |= _of(container)
    return total


def _of(container: dict[str, Any]) -> Counter[str]:
    resources = container.get("resources") or {}
    wanted = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return Counter({name: milli(quantity) for name, quantity in wanted.items()})
