"""Placeholders: Pods for which the autoscaler of a cluster adds a node to a pool. Pure.

A placeholder requests what a new node has. Nodes that existed before it, or that joined for another one, are excluded
by name, so that it fits on none of them. So the objects of the cluster alone tell which placeholders to delete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from commonage.domain.nodes import Machine
from commonage.domain.resources import NodePool
from commonage.engines.kubernetes.labels import label_value
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.nodes import not_answering_since
from commonage.engines.kubernetes.placement.quantities import milli
from commonage.engines.kubernetes.placement.tolerations import tolerates
from commonage.engines.kubernetes.statuses import instant
from commonage.engines.kubernetes.translate import (
    INSTALLATION,
    PREFIX,
    PodContext,
    container_security,
    host_users,
    pod_security,
    pull_secrets,
)
from commonage.engines.settings import KubernetesSettings

POOL, _UNTIL = f"{PREFIX}/node-pool", f"{PREFIX}/until"
IMAGE = "registry.k8s.io/pause:3.10"
"""Rarely pulled: a placeholder is deleted when it is bound."""
GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Place:
    """Inputs of a placeholder in addition to its pool. `nodes`: those of the pool that are there. `until`: unix
    seconds.
    """

    context: PodContext
    nodes: Collection[str]
    until: float


def placeholder(name: str, pool: NodePool, place: Place, settings: KubernetesSettings) -> Manifest:
    kind = pool.policy.kind
    amounts = {"cpu": f"{kind.cpus_milli}m", "memory": f"{kind.memory_mib}Mi"}
    if kind.gpus:
        amounts[str(pool.options.get("gpu_resource") or GPU_RESOURCE)] = str(kind.gpus)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": place.context.namespace,
            "labels": {INSTALLATION: label_value(place.context.installation), POOL: pool.policy.name},
            "annotations": {_UNTIL: str(round(place.until))},
        },
        "spec": {
            "restartPolicy": "Always",
            **({"priorityClassName": settings.placeholder_class} if settings.placeholder_class else {}),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": dict(kind.labels),
            **_elsewhere(place.nodes),
            "tolerations": [dict(one) for one in settings.tolerations],
            "securityContext": pod_security(settings),
            **host_users(settings),
            **pull_secrets(settings),
            "containers": [
                {
                    "name": "placeholder",
                    "image": pool.image or IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {"requests": amounts, "limits": dict(amounts)},
                    "securityContext": container_security(settings),
                }
            ],
        },
    }


def _elsewhere(nodes: Collection[str]) -> Manifest:
    """The affinity to all other nodes. A term without fields would match none."""
    if not nodes:
        return {}
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [one]} for one in sorted(nodes)]
    term = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}


def pool_of(pod: Manifest) -> str:
    """The pool whose placeholder the Pod is; empty for other Pods."""
    return str((pod["metadata"].get("labels") or {}).get(POOL, ""))


def _name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def _excluded(pod: Manifest) -> set[str]:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms") or ()
    return {value for term in terms for one in term.get("matchFields") or () for value in one["values"]}


def of_pool(nodes: Iterable[Manifest], labels: Mapping[str, str]) -> list[Manifest]:
    """The nodes that carry all labels of the pool."""
    return [one for one in nodes if labels.items() <= (one["metadata"].get("labels") or {}).items()]


def _may_take(pod: Manifest, node: Manifest) -> bool:
    """Whether the node is one of its pool, and not excluded."""
    return bool(of_pool([node], pod["spec"]["nodeSelector"])) and _name(node) not in _excluded(pod)


def has_arrived(node: Manifest, pod: Manifest) -> bool:
    """Whether the placeholder could run there, so that work can: it is ready, and its GPUs are there."""
    taints = (one for one in node["spec"].get("taints") or () if one.get("effect") in ("NoSchedule", "NoExecute"))
    tolerations = pod["spec"].get("tolerations") or ()
    if node["spec"].get("unschedulable") or not_answering_since(node) is not None:
        return False
    if any(not any(tolerates(one, taint) for one in tolerations) for taint in taints):
        return False
    has = (node.get("status") or {}).get("allocatable") or {}
    wanted = pod["spec"]["containers"][0]["resources"]["requests"]
    return all(milli(has.get(name, 0)) >= milli(amount) for name, amount in wanted.items())


_KEPT = (
    "restartPolicy", "priorityClassName", "automountServiceAccountToken", "enableServiceLinks",
    "terminationGracePeriodSeconds", "nodeSelector", "tolerations", "securityContext", "imagePullSecrets",
)  # fmt: skip
_OF_CONTAINER = ("name", "image", "imagePullPolicy", "resources", "securityContext")


def without(pod: Manifest, nodes: Collection[str]) -> Manifest:
    """The same placeholder, for which these nodes are excluded too. A Pod's affinity cannot change: recreate it."""
    meta, spec = pod["metadata"], pod["spec"]
    (container,) = spec["containers"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: meta[key] for key in ("name", "namespace", "labels", "annotations") if key in meta},
        "spec": {
            **{key: spec[key] for key in _KEPT if key in spec},
            **_elsewhere(_excluded(pod) | set(nodes)),
            "containers": [{key: container[key] for key in _OF_CONTAINER if key in container}],
        },
    }


@dataclass(slots=True)
class Release:
    """`gone`: placeholders to delete. `renewed`: those to recreate, each with the nodes to exclude in addition."""

    gone: list[Manifest] = field(default_factory=list)
    renewed: list[tuple[Manifest, set[str]]] = field(default_factory=list)


def release(placeholders: Sequence[Manifest], nodes: Sequence[Manifest], now: float) -> Release:
    """Changes of the placeholders of one pool: each node that has joined serves one of them.

    That is the one bound to the node, else the oldest. The others exclude the node from then on.
    """
    waiting = _in_order(placeholders)
    gone = [one for one in waiting if now > float(one["metadata"]["annotations"].get(_UNTIL, "inf"))]
    taken: dict[str, set[str]] = {}
    for node in sorted(nodes, key=_name):
        mine = [one for one in waiting if one not in gone and _may_take(one, node)]
        bound = [one for one in mine if one["spec"].get("nodeName") == _name(node)]
        if not mine or not (bound or has_arrived(node, mine[0])):
            continue
        served = min(bound or mine, key=lambda one: bool(one["spec"].get("nodeName")))
        gone.append(served)
        for one in mine:
            if one is not served:
                taken.setdefault(_name(one), set()).add(_name(node))
    renewed = [(one, taken[_name(one)]) for one in waiting if one not in gone and _name(one) in taken]
    return Release(gone, renewed)


def _in_order(placeholders: Iterable[Manifest]) -> list[Manifest]:
    """Those that are not being deleted, oldest first."""
    live = (one for one in placeholders if not one["metadata"].get("deletionTimestamp"))
    return sorted(live, key=lambda one: (str(one["metadata"].get("creationTimestamp")), _name(one)))


def machines(pool: NodePool, placeholders: Sequence[Manifest], nodes: Sequence[Manifest]) -> list[Machine]:
    """The nodes of the pool, and the placeholders whose nodes are not there yet.

    A new node that cannot take work yet is starting, and stands for the placeholder that waits for it.
    """
    waiting, found = _in_order(placeholders), []
    for node in of_pool(nodes, dict(pool.policy.kind.labels)):
        meta = node["metadata"]
        starting = next((one for one in waiting if _may_take(one, node) and not has_arrived(node, one)), None)
        if starting is not None:
            waiting.remove(starting)
        created = instant(meta.get("creationTimestamp"))
        found.append(Machine(str(meta["uid"]), _name(node), created, starting=starting is not None))
    requests = (
        Machine(
            str(one["metadata"]["uid"]), _name(one), instant(one["metadata"].get("creationTimestamp")), requested=True
        )
        for one in waiting
    )
    return [*found, *requests]
