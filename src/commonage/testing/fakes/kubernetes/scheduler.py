"""Binds Pods to nodes by affinity to a node's name, taints, resources and claims of devices.

Refusals are kube-scheduler's own texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.quantities import milli
from commonage.testing.fakes.kubernetes.claims import allocation_of
from commonage.testing.fakes.kubernetes.store import DEVICE_CLAIMS, NODES, PODS, SLICES, Change, Key, Store, key_of, now

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
            if ended:
                self._release(change.after)
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
        claims = _claims_of(current)
        if missing := next((key for key in claims if self._store.find(DEVICE_CLAIMS, key) is None), None):
            self._refuse(current, "Unschedulable", f'resourceclaim "{missing[1]}" not found')
            return
        why: Counter[str] = Counter()
        nodes = list(self._store.all(NODES))
        for node in nodes:
            refusals = self._refusals(node, current)
            given = {} if refusals else self._allocated(claims, node["metadata"]["name"])
            if given is None:
                refusals = ["cannot allocate all claims"]
            elif not refusals:
                for claim, allocation in given.items():
                    self._store.change(DEVICE_CLAIMS, claim, status={"allocation": allocation})
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

    def _allocated(self, claims: Sequence[Key], node: str) -> dict[Key, Manifest] | None:
        """The allocation of each claim on the node; None if one gets nothing."""
        found: dict[Key, Manifest] = {}
        for key in claims:
            held = [one for one in self._store.all(DEVICE_CLAIMS) if key_of(one) not in claims]
            held += [{"status": {"allocation": one}} for one in found.values()]
            allocation = allocation_of(self._store.get(DEVICE_CLAIMS, key), node, self._store.all(SLICES), held)
            if allocation is None:
                return None
            found[key] = allocation
        return found

    def _release(self, pod: Manifest) -> None:
        for key in _claims_of(pod):
            self._store.change(DEVICE_CLAIMS, key, status={})

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


def _claims_of(pod: Manifest) -> list[Key]:
    namespace = pod["metadata"]["namespace"]
    return [(namespace, one["resourceClaimName"]) for one in pod["spec"].get("resourceClaims") or ()]


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
