"""Kueue in the namespace of a tenant: pods go to its LocalQueue, and its gates and deletions are explained. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import KueueStopped, WaitingForKueue
from commonage.engines.kubernetes.manifest import Manifest

QUEUE = "kueue.x-k8s.io/queue-name"
DEFAULT_QUEUE = "default"
"""The LocalQueue of this name takes the pods of its namespace that name no queue (Kueue's LocalQueueDefaulting)."""
_GATE = "kueue.x-k8s.io/admission"
_STOPPED = "StoppedByKueue"


def queue_of(namespace: Manifest, local_queues: Sequence[Manifest]) -> str:
    """The LocalQueue for the pods of a namespace: its label's, else the default one; empty if Kueue is not used."""
    labels = namespace["metadata"].get("labels") or {}
    name = str(namespace["metadata"]["name"])
    there = {one["metadata"]["name"] for one in local_queues if one["metadata"].get("namespace") == name}
    return str(labels.get(QUEUE) or (DEFAULT_QUEUE if DEFAULT_QUEUE in there else ""))


def queued(pod: Manifest, queue: str, flavor: Manifest | None = None) -> Manifest:
    """The pod for this LocalQueue. `flavor`: the ResourceFlavor whose nodes it needs, with their labels and taints."""
    pod = copy.deepcopy(pod)
    pod["metadata"].setdefault("labels", {})[QUEUE] = queue
    spec = (flavor or {}).get("spec") or {}
    if labels := spec.get("nodeLabels"):
        pod["spec"]["nodeSelector"] = {**(pod["spec"].get("nodeSelector") or {}), **labels}
    kept = pod["spec"].get("tolerations") or []
    if added := [dict(one) for one in spec.get("tolerations") or () if one not in kept]:
        pod["spec"]["tolerations"] = [*kept, *added]
    return pod


def flavor_of(node: Manifest, flavors: Sequence[Manifest]) -> Manifest | None:
    """The flavor that the node belongs to: the one with the most labels, all of which the node carries."""
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    fitting = [one for one in flavors if (one["spec"].get("nodeLabels") or {}).items() <= labels.items()]
    return max(
        fitting, key=lambda one: (len(one["spec"].get("nodeLabels") or {}), one["metadata"]["name"]), default=None
    )


def flavor_names(cluster_queue: Manifest) -> set[str]:
    groups = cluster_queue["spec"].get("resourceGroups") or ()
    return {str(one["name"]) for group in groups for one in group.get("flavors") or ()}


def waiting_reason(pod: Manifest) -> Reason | None:
    """Why the pod waits if Kueue has not admitted it yet; None if it does not wait for Kueue."""
    gates = [one["name"] for one in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if _GATE not in gates:
        return None
    return WaitingForKueue(queue=str((pod["metadata"].get("labels") or {}).get(QUEUE, "")))


def stop_reason(status: Mapping[str, Any]) -> KueueStopped | None:
    """Why Kueue deletes the pod of this status; None if it does not."""
    for one in status.get("conditions") or ():
        if one.get("type") == "TerminationTarget" and one.get("status") == "True" and one.get("reason") == _STOPPED:
            return KueueStopped(error=str(one.get("message") or ""))
    return None
