"""Capacity of the nodes of a cluster for our workloads: their allocatable resources less the requests of other pods.

The engine feeds it each node and pod that changed. A report is made again only for a node that changed, or whose
foreign pods did, so that 1,000 nodes with 10,000 pods cost nothing between changes.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from commonage.domain.nodes import Device, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import (
    ClusterNodeCordoned,
    ClusterNodeNotReady,
    ClusterNodeTainted,
    EngineNotAnswering,
)
from commonage.engines.kubernetes.manifest import Manifest, has_ended
from commonage.engines.kubernetes.placement.quantities import milli
from commonage.engines.kubernetes.placement.tolerations import Toleration, tolerates

_log = logging.getLogger(__name__)
INSTALLATION = "commonage.dev/installation"
Amounts = Counter[str]
"""Thousandths of each resource by its name in the cluster: `cpu`, `memory`, `nvidia.com/gpu`."""
DevicesOf = Callable[[Manifest, Mapping[str, int]], Sequence[Device]]
"""The GPUs of a node, from its manifest and what foreign pods request there (in thousandths)."""

_MIB_MILLI = 1024 * 1024 * 1000
_POD_LEVEL = re.compile(r"cpu|memory|hugepages-.*", re.ASCII)
# These repeat a condition or `unschedulable`, which is reported instead.
_SAID_OTHERWISE = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/out-of-service",
    }
)


def effective_requests(pod: Manifest) -> Amounts:
    """The resources that the scheduler of the cluster counts for a pod, as Kubernetes defines them.

    Containers and sidecars run together; each other init container runs together with the sidecars that precede it.
    Requests of the pod as a whole replace the sums of its containers. The overhead of its runtime class is added.
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    given = {
        one["name"]: one for key in ("containerStatuses", "initContainerStatuses") for one in status.get(key) or ()
    }
    infeasible = any(
        one.get("type") == "PodResizePending" and one.get("reason") == "Infeasible"
        for one in status.get("conditions") or ()
    )
    total: Amounts = Counter()
    for container in spec.get("containers") or ():
        total.update(_of_container(container, given, infeasible=infeasible))
    sidecars: Amounts = Counter()
    peak: Amounts = Counter()
    for container in spec.get("initContainers") or ():
        amounts = _of_container(container, given, infeasible=infeasible)
        if container.get("restartPolicy") == "Always":
            sidecars.update(amounts)
            peak |= sidecars
        else:
            peak |= sidecars + amounts
    total.update(sidecars)
    total |= peak
    for name, amount in _amounts((spec.get("resources") or {}).get("requests")).items():
        if _POD_LEVEL.fullmatch(name):
            total[name] = amount
    total.update(_amounts(spec.get("overhead")))
    return total


def _of_container(container: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]], *, infeasible: bool) -> Amounts:
    """A resize in place counts as the larger of the old and the new requests, until it is done or cannot be."""
    wanted = _amounts((container.get("resources") or {}).get("requests"))
    status = given.get(str(container.get("name")), {})
    has = _amounts(status.get("allocatedResources")) | _amounts((status.get("resources") or {}).get("requests"))
    return has if infeasible and has else wanted | has


def _amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    return Counter({name: milli(quantity) for name, quantity in (quantities or {}).items()})


def node_of(pod: Manifest) -> str:
    """The node that it is bound to or nominated for; empty without one."""
    return str((pod.get("spec") or {}).get("nodeName") or (pod.get("status") or {}).get("nominatedNodeName") or "")


def is_foreign(pod: Manifest, installation: str) -> bool:
    """True if the pod is not of this installation, and has not ended."""
    labels = pod["metadata"].get("labels") or {}
    return labels.get(INSTALLATION) != installation and not has_ended(pod)


def no_devices(_node: Manifest, _foreign: Mapping[str, int]) -> Sequence[Device]:
    return ()


def report_of(
    node: Manifest, foreign: Mapping[str, int], tolerations: Sequence[Toleration], devices_of: DevicesOf = no_devices
) -> NodeReport:
    """The node as our scheduler sees it. `foreign`: the sum of `effective_requests` of the foreign pods there."""
    name, status = str(node["metadata"]["name"]), node.get("status") or {}
    allocatable = _amounts(status.get("allocatable"))
    nothing: Mapping[str, Any] = {}
    ready = next((one for one in status.get("conditions") or () if one["type"] == "Ready"), nothing)
    return NodeReport(
        name,
        max(0, allocatable["cpu"] - foreign.get("cpu", 0)),
        max(0, (allocatable["memory"] - foreign.get("memory", 0)) // _MIB_MILLI),
        tuple(devices_of(node, foreign)),
        labels=tuple(sorted((node["metadata"].get("labels") or {}).items())),
        faults=_faults(node, ready, tolerations),
    )


def _faults(node: Manifest, ready: Mapping[str, Any], tolerations: Sequence[Toleration]) -> tuple[Reason, ...]:
    faults: list[Reason] = []
    if ready.get("status") != "True":
        said = str(ready.get("message") or ready.get("reason") or "its kubelet has not reported yet")
        faults.append(ClusterNodeNotReady(error=said))
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        faults.append(ClusterNodeCordoned())
    for taint in spec.get("taints") or ():
        keeps_out = taint.get("effect") in ("NoSchedule", "NoExecute") and taint["key"] not in _SAID_OTHERWISE
        if keeps_out and not any(tolerates(one, taint) for one in tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            faults.append(ClusterNodeTainted(taint=f"{taint['key']}{value}:{taint['effect']}"))
    return tuple(faults)


class Capacity:
    """The nodes of one cluster. `installation` is the value of the label that our pods carry."""

    def __init__(
        self, installation: str, tolerations: Sequence[Toleration] = (), devices_of: DevicesOf = no_devices
    ) -> None:
        self._installation, self._tolerations, self._devices_of = installation, tuple(tolerations), devices_of
        self._nodes: dict[str, Manifest] = {}
        self._pods: dict[str, tuple[str, Amounts]] = {}  # by uid: its node and requests
        self._on_node: dict[str, dict[str, Amounts]] = {}
        self._reports: dict[str, NodeReport] = {}
        self._changed: set[str] = set()  # nodes that need a new report
        self._unread: set[tuple[str, type[Exception]]] = set()  # logged

    def put_node(self, node: Manifest) -> None:
        name = str(node["metadata"]["name"])
        self._nodes[name] = node
        self._changed.add(name)

    def remove_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._reports.pop(name, None)

    def put_pod(self, pod: Manifest) -> None:
        """A pod as it is now. It may be Commonage's own, or have ended."""
        uid, node = str(pod["metadata"]["uid"]), node_of(pod)
        now = (node, effective_requests(pod)) if node and is_foreign(pod, self._installation) else None
        before = self._pods.get(uid)
        if now == before:
            return
        self.remove_pod(uid)
        if now is not None:
            self._pods[uid] = now
            self._on_node.setdefault(node, {})[uid] = now[1]
            self._changed.add(node)

    def remove_pod(self, uid: str) -> None:
        before = self._pods.pop(uid, None)
        if before is None:
            return
        there = self._on_node[before[0]]
        del there[uid]
        if not there:
            del self._on_node[before[0]]
        self._changed.add(before[0])

    def forget_reports(self) -> None:
        """Call this when the result of `devices_of` has changed."""
        self._changed.update(self._nodes)

    def reports(self) -> Sequence[NodeReport]:
        for name in self._nodes.keys() & self._changed:
            self._reports[name] = self._report_of(name)
        self._changed.clear()
        return [self._reports[name] for name in sorted(self._reports)]

    def _report_of(self, name: str) -> NodeReport:
        """A node that cannot be read keeps its last sizes, because work may run there, and takes no more work."""
        foreign: Amounts = Counter()
        for amounts in self._on_node.get(name, {}).values():
            foreign.update(amounts)
        try:
            return report_of(self._nodes[name], foreign, self._tolerations, self._devices_of)
        except Exception as error:  # any exception: the other nodes must still be reported
            if (name, type(error)) not in self._unread:
                self._unread.add((name, type(error)))
                _log.exception("the node %s of the cluster cannot be read", name)
            last = self._reports.get(name) or NodeReport(name, 0, 0)
            said = f"the objects of the node cannot be read ({type(error).__name__}): see the log of the server"
            return replace(last, faults=(EngineNotAnswering(error=said),))
