"""Nodes of the Swarm, as the Swarm and their agents report them. Pure; used by `node_tracker`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from commonage.domain.nodes import Device, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import GpuNotDeclared
from commonage.domain.reasons.engines import NodeNotice, NodesWithoutAgent, PlainHttpToHub
from commonage.domain.reasons.nodes import (
    AgentNotAnswering,
    HostNameChanged,
    HostNameTaken,
    NoNodeCertificate,
    SwarmNodeDown,
    SwarmNodeNotActive,
    SwarmNodeNotReady,
)
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.swarm.translate import VRAM
from commonage.ports.agents import AgentReport

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SwarmNode:
    """One member of the Swarm. `vram_mib` is what it declares, None if nothing.

    `name` is what its certificate binds to `id`, and the host name if there are no certificates. `mismatch` says why
    the two do not belong together: such a node gets no work.

    `state` is Swarm's own term; `why_down` is empty until the node is down. After a manager was away, nodes are
    `unknown` for a while, which is no reason to give up their attempts.
    """

    id: str
    name: str
    address: str
    cpus_milli: int
    memory_mib: int
    vram_mib: int | None
    arch: str
    labels: tuple[tuple[str, str], ...]
    state: str = "ready"
    why_down: str = ""
    availability: str = "active"
    is_manager: bool = False
    mismatch: Reason | None = None

    @property
    def is_down(self) -> bool:
        """True once the Swarm has marked it as down."""
        return bool(self.why_down)

    @property
    def takes_work(self) -> bool:
        """True if the Swarm would start a task there, and the node's identity is verified."""
        return not self.is_down and self.availability == "active" and self.mismatch is None


@dataclass(frozen=True, slots=True)
class Wait:
    """Why attempts of a node do not start elsewhere yet. `for_long`: until the node returns or an admin acts."""

    why: Reason
    for_long: bool = False


def swarm_nodes_of(found: Iterable[Json], bound: Mapping[str, str] | None = None) -> dict[str, SwarmNode]:
    """Nodes by name. One that is just joining has none yet.

    `bound` are the names that certificates bind to node ids. Host names are the nodes' own claims: a node without a
    certificate never gets a name that is bound to another, and takes work only if it is a manager, on which the site
    depends anyway. `None`: the site has no certificates, and only host names exist.

    If several have one host name, because a node joined again, the name is for the one that is present.
    """
    named = [node for node in found if (node.get("Description") or {}).get("Hostname")]
    there = sorted((_swarm_node(node) for node in named), key=lambda one: (one.is_down, one.state != "ready", one.id))
    swarm_nodes: dict[str, SwarmNode] = {}
    for one in there:
        if bound and (name := bound.get(one.id)) is not None:
            why = None if one.name == name else HostNameChanged(host_name=one.name, node=name)
            swarm_nodes.setdefault(name, replace(one, name=name, mismatch=why))
    # A worker must not get the name of a manager that has no certificate either.
    for one in there if bound is None else sorted(there, key=lambda one: not one.is_manager):
        if bound is None or one.id not in bound:
            _add_without_certificate(swarm_nodes, one, needs_certificate=bound is not None)
    return swarm_nodes


def _add_without_certificate(swarm_nodes: dict[str, SwarmNode], one: SwarmNode, *, needs_certificate: bool) -> None:
    name = one.name
    why: Reason | None = None
    if name in swarm_nodes:
        if one.is_down:
            return
        name = f"{one.name}-{one.id[:6]}"
        why = HostNameTaken(host_name=one.name, node=name)
    elif not one.is_manager:
        why = NoNodeCertificate(swarm_node_id=one.id, node=name)
    swarm_nodes.setdefault(name, replace(one, name=name, mismatch=why if needs_certificate else None))


def _swarm_node(node: Json) -> SwarmNode:
    description, status, spec = node["Description"], node["Status"], node["Spec"]
    resources = description.get("Resources") or {}
    down = (status.get("Message") or "Docker Swarm says that it is down") if status["State"] == "down" else ""
    return SwarmNode(
        id=node["ID"],
        name=description["Hostname"],
        address=_address(node),
        cpus_milli=int(resources.get("NanoCPUs", 0)) // 1_000_000,
        memory_mib=int(resources.get("MemoryBytes", 0)) // _MIB,
        vram_mib=_vram(resources),
        arch=(description.get("Platform") or {}).get("Architecture", ""),
        labels=tuple(sorted((spec.get("Labels") or {}).items())),
        state=status["State"],
        why_down=down,
        availability=spec.get("Availability", "active"),
        is_manager=spec.get("Role") == "manager",
    )


def _address(node: Json) -> str:
    address = str(node["Status"].get("Addr", ""))
    if address in ("", "0.0.0.0", "127.0.0.1"):
        manager = str((node.get("ManagerStatus") or {}).get("Addr", ""))
        return manager.rpartition(":")[0] or address
    return address


def _vram(resources: Json) -> int | None:
    for one in resources.get("GenericResources") or ():
        discrete = one.get("DiscreteResourceSpec") or {}
        if discrete.get("Kind") == VRAM:
            return int(discrete["Value"])
    return None


def report_of(
    swarm_node: SwarmNode,
    agent_report: AgentReport | None,
    wait: Wait | None = None,
    why_unmounted: Reason | None = None,
) -> NodeReport:
    """Report of a node. Without an agent only cores and memory are known, and no GPU.

    `why_unmounted`: why the folders of workloads cannot be mounted there, if so.
    """
    faults = [one for one in (swarm_node.mismatch, why_unmounted) if one is not None]
    if swarm_node.is_down:
        faults.append(SwarmNodeDown(error=swarm_node.why_down))
        faults += [wait.why] if wait is not None else []
    elif swarm_node.state != "ready":
        faults.append(SwarmNodeNotReady(state=swarm_node.state))
    elif swarm_node.availability != "active":
        faults.append(SwarmNodeNotActive(availability=swarm_node.availability))
    labels: Mapping[str, str] = {"arch": swarm_node.arch, "os": "linux", **dict(swarm_node.labels)}
    report = NodeReport(swarm_node.name, swarm_node.cpus_milli, swarm_node.memory_mib)
    if agent_report is not None:
        node_report = agent_report.report
        report = replace(
            node_report,
            name=swarm_node.name,
            cpus_milli=node_report.cpus_milli or swarm_node.cpus_milli,
            memory_mib=node_report.memory_mib or swarm_node.memory_mib,
            devices=tuple(_reservable(node_report.devices, swarm_node.vram_mib or 0)),
        )
        labels = {**dict(node_report.labels), **labels}  # those of the Swarm's admins win
        faults += node_report.faults
        if agent_report.engine_fault is not None:
            faults.append(agent_report.engine_fault)
        if not agent_report.connected and not swarm_node.is_down:
            faults.append(AgentNotAnswering())
    faults = list(dict.fromkeys(faults))
    gone = swarm_node.is_down and (wait is None or wait.for_long)
    undecided = wait.why if gone and wait is not None else None
    labelled = tuple(sorted(labels.items()))
    return replace(report, labels=labelled, faults=tuple(faults), gone=gone, awaits_admin=undecided)


def _reservable(gpus: tuple[Device, ...], declared_mib: int) -> Iterator[Device]:
    """The GPUs; with a fault on those that have no VRAM left to reserve, because Swarm would start no task on them."""
    there = sum(gpu.memory_mib for gpu in gpus if not gpu.simulated)
    why = GpuNotDeclared(declared_mib=declared_mib, present_mib=there)
    left = declared_mib
    for gpu in gpus:
        left -= 0 if gpu.simulated else gpu.memory_mib
        yield gpu if gpu.simulated or left >= 0 else replace(gpu, faults=(*gpu.faults, why))


def plain_http_on(agent_report: Mapping[str, AgentReport]) -> list[str]:
    """Nodes whose agents, of an earlier version, do not carry what containers send to the hub."""
    return sorted(name for name, one in agent_report.items() if one.connected and not one.gateway)


def notes_on(swarm_nodes: Mapping[str, SwarmNode], agent_report: Mapping[str, AgentReport]) -> tuple[Reason, ...]:
    """Notes about these nodes for an admin."""
    without = sorted(name for name, one in swarm_nodes.items() if name not in agent_report and one.mismatch is None)
    notes: list[Reason] = [
        NodeNotice(node=name, cause=notice) for name, one in sorted(agent_report.items()) for notice in one.notices
    ]
    if without:
        notes.append(NodesWithoutAgent(nodes=tuple(without)))
    in_the_clear = plain_http_on(agent_report)
    if in_the_clear:
        notes.append(PlainHttpToHub(nodes=tuple(in_the_clear)))
    return tuple(notes)
