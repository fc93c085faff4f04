"""What the cluster tells about its nodes, as reports for the scheduler. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal

from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import (
    ClusterNodeCordoned,
    ClusterNodeNotReady,
    ClusterNodeSilent,
    ClusterNodeTainted,
)
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.statuses import instant

_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|n|u)?", re.ASCII)
_FACTORS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    **{unit: Decimal(1000) ** (power + 1) for power, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Decimal(1024) ** (power + 1) for power, unit in enumerate("KMGTPE")},
}  # fmt: skip
_MIB = 1024 * 1024
_OVER = ("Succeeded", "Failed")


def quantity(text: str) -> Decimal:
    """The number that Kubernetes writes as 1500m, 8Gi or 1e3. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a quantity")
    return Decimal(found[1]) * _FACTORS[found[2] or ""]


Requests = Mapping[str, tuple[int, int]]
"""CPUs in thousandths and memory in MiB, by node."""


def requests_of_others(pods: Iterable[Manifest], is_ours: Callable[[Manifest], bool]) -> Requests:
    """What Pods that are not ours request of each node."""
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if not node or is_ours(pod) or (pod.get("status") or {}).get("phase") in _OVER:
            continue
        cpus, memory = sums[node]
        more = _request_of(pod)
        sums[node] = cpus + more[0], memory + more[1]
    return sums


def _request_of(pod: Manifest) -> tuple[int, int]:
    """As the scheduler counts: containers and restartable init containers together, or the largest init container."""
    spec = pod["spec"]
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    starting = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") != "Always"]

    def total(containers: Iterable[Manifest], name: str) -> Decimal:
        return sum((_asked(one, name) for one in containers), Decimal(0))

    def asked(name: str) -> Decimal:
        running = total([*spec["containers"], *sidecars], name)
        first = max((_asked(one, name) + total(sidecars, name) for one in starting), default=Decimal(0))
        return max(running, first) + quantity((spec.get("overhead") or {}).get(name, "0"))

    return -int(-asked("cpu") * 1000 // 1), -int(-asked("memory") / _MIB // 1)


def _asked(container: Manifest, name: str) -> Decimal:
    return quantity(((container.get("resources") or {}).get("requests") or {}).get(name, "0"))


def not_answering_since(node: Manifest) -> float | None:
    """Since when the node is not ready, unix seconds; None if it is."""
    for one in (node.get("status") or {}).get("conditions") or ():
        if one["type"] == "Ready":
            return None if one["status"] == "True" else instant(one.get("lastTransitionTime"))
    return 0.0


def report_of(
    node: Manifest,
    others: Requests,
    lost_after_s: float,
    now: float,
    faults: Sequence[Reason],
    disk_pressure: Reason | None,
) -> NodeReport:
    """The report of a node: what it has, less what others' Pods request.

    After `lost_after_s` without an answer it is given up; what runs there may still run, so only an admin can say that
    it does not.
    """
    name, status = node["metadata"]["name"], node["status"]
    cpus, memory = others.get(name, (0, 0))
    allocatable = status.get("allocatable") or {}
    own_faults = [*_faults(node)]
    since = not_answering_since(node)
    silent = since is not None and now - since > lost_after_s
    return NodeReport(
        name,
        max(0, int(quantity(allocatable.get("cpu", "0")) * 1000) - cpus),
        max(0, int(quantity(allocatable.get("memory", "0")) / _MIB) - memory),
        labels=tuple(sorted((node["metadata"].get("labels") or {}).items())),
        faults=(*own_faults, *faults),
        disk_pressure=disk_pressure,
        gone=silent,
        awaits_admin=ClusterNodeSilent(node=name) if silent else None,
    )


def _faults(node: Manifest) -> Iterable[Reason]:
    if not_answering_since(node) is not None:
        ready = [one for one in node["status"].get("conditions") or () if one["type"] == "Ready"]
        yield ClusterNodeNotReady(error=str(ready[0].get("message", "")) if ready else "it never reported")
    if node["spec"].get("unschedulable"):
        yield ClusterNodeCordoned()
    for taint in node["spec"].get("taints") or ():
        known = taint["key"].startswith("node.kubernetes.io/")
        if taint["effect"] in ("NoSchedule", "NoExecute") and not known:
            yield ClusterNodeTainted(taint=f"{taint['key']}={taint.get('value', '')}:{taint['effect']}")
