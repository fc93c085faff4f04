"""Nodes of the site, as of the last query to the Swarm and the agents. Used by the engine's parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Address

from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import WaitingForAgent
from commonage.domain.reasons.nodes import (
    AgentTooOld,
    NoAgent,
    NodeTakesNoWork,
    NotInSwarm,
    SwarmNodeDown,
)
from commonage.engines.containers.attempt_backend import NodeGone, Unreachable
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes.partition_detector import ENDING_FIRST, PartitionDetector, neighbors_of
from commonage.engines.swarm.nodes.swarm_nodes import (
    SwarmNode,
    Wait,
    notes_on,
    report_of,
    swarm_nodes_of,
)
from commonage.ports.agents import AgentReport, Agents


class AgentUnreachable(Unreachable):
    """The node's agent does not answer."""

    waiting = WaitingForAgent()


class NodeTracker:
    """The nodes of the site.

    `without_agents`: nodes without an agent take work, too. `waits`: the down nodes whose attempts must not start
    elsewhere yet.
    """

    def __init__(self, client: Client, agents: Agents | None, *, without_agents: bool = False) -> None:
        self._client = client
        self._without_agents = without_agents
        self.agents = agents
        self.swarm_nodes: Mapping[str, SwarmNode] = {}
        self.by_id: Mapping[str, SwarmNode] = {}
        self.agent_reports: Mapping[str, AgentReport] = {}
        self._fault = ""
        self._partition_detector = PartitionDetector(agents)
        self.waits: Mapping[str, Wait] = {}
        self._neighbors_of: tuple[tuple[str, str], ...] = ()
        self._changed = False

    @property
    def fault(self) -> str:
        """Why the Swarm does not answer its watcher; empty while it does."""
        return self._fault

    def note_fault(self, why: str) -> None:
        self._fault = why

    async def poll(self) -> bool:
        """Query both; True if a node changed since the last look. Raises EngineFailure."""
        await self.refresh()
        changed, self._changed = self._changed, False
        return changed

    async def refresh(self) -> None:
        """Query both, and keep the changes for the next look. Raises EngineFailure."""
        bound = None if self.agents is None else await self.agents.bindings()
        swarm_nodes = swarm_nodes_of(await self._client.nodes(), bound)
        agent_report = _by_node(swarm_nodes, () if self.agents is None else self.agents.agent_reports())
        waits = await self._partition_detector.waits(swarm_nodes, agent_report)
        now, before = (
            (swarm_nodes, _watched_fields(agent_report), waits),
            (self.swarm_nodes, _watched_fields(self.agent_reports), self.waits),
        )
        self._changed = self._changed or now != before
        self.swarm_nodes, self.agent_reports, self.waits = swarm_nodes, agent_report, waits
        self.by_id = {one.id: one for one in swarm_nodes.values()}
        self._set_neighbors()

    def _set_neighbors(self) -> None:
        """Send agents the list of nodes by which they detect that they are cut off, whenever it changes."""
        found = neighbors_of(self.swarm_nodes, self.agent_reports, self.waits)
        self._partition_detector.record_neighbors(tuple(name for name, _ in found))
        if self.agents is not None and found != self._neighbors_of:
            self.agents.set_neighbors(found)
            self._neighbors_of = found

    def swarm_node(self, name: str) -> SwarmNode:
        """The node of this name. Raises NodeGone."""
        found = self.swarm_nodes.get(name)
        if found is None:
            raise NodeGone(NotInSwarm(node=name, nodes=tuple(sorted(self.swarm_nodes))))
        if found.is_down:
            raise NodeGone(NodeTakesNoWork(node=name, cause=SwarmNodeDown(error=found.why_down)))
        if found.mismatch is not None:
            raise NodeGone(NodeTakesNoWork(node=name, cause=found.mismatch))
        return found

    def agent_of(self, name: str) -> Agents | None:
        """The agents, if the one on this node answers; it is addressed by `id_of` the node."""
        agent_report = self.agent_reports.get(name)
        return self.agents if agent_report is not None and agent_report.connected else None

    def id_of(self, name: str) -> str:
        """The Swarm node id of a node whose agent has reported."""
        return self.agent_reports[name].node_id

    def gateway_of(self, name: str) -> str | None:
        """Address by which containers of this node reach its agent; None if the agent does not relay for them."""
        agent_report = self.agent_reports.get(name)
        try:
            return str(IPv4Address(agent_report.gateway)) if agent_report is not None else None
        except ValueError:
            return None

    def has_address(self, address: str) -> bool:
        """True for the address of a site's node that is not down: its containers connect from there."""
        return any(
            one.address == address and not one.is_down and one.mismatch is None for one in self.swarm_nodes.values()
        )

    def is_down(self, node_id: str) -> bool:
        swarm_node = self.by_id.get(node_id)
        return swarm_node is not None and swarm_node.is_down

    def reports(self, being_fenced: Collection[str] = ()) -> list[NodeReport]:
        """`being_fenced` are the nodes whose attempts are being ended before they start elsewhere."""
        waits = {**dict.fromkeys(being_fenced, ENDING_FIRST), **self.waits}
        return [
            report_of(swarm_node, self.agent_reports.get(name), waits.get(name), self.why_unmounted(name))
            for name, swarm_node in sorted(self.swarm_nodes.items())
        ]

    def why_unmounted(self, name: str) -> Reason | None:
        """Why the folders of workloads cannot be mounted on this node, so that it takes no work; None if they can.

        The only node of a Swarm needs no mounting agent: no other node could change where a path leads.
        """
        agent_report = self.agent_reports.get(name)
        if agent_report is not None:
            return None if agent_report.mounts else AgentTooOld()
        return None if self._without_agents or len(self.swarm_nodes) == 1 else NoAgent()

    def notes(self) -> tuple[Reason, ...]:
        return notes_on(self.swarm_nodes, self.agent_reports)

    @property
    def has_agents(self) -> bool:
        """True if every node that may get work has an agent, whose firewall isolates tenants from each other."""
        return {name for name, one in self.swarm_nodes.items() if one.mismatch is None} <= self.agent_reports.keys()

    def bounds_volumes(self, name: str) -> bool:
        """True if its agent reports that the daemon there limits volume sizes."""
        agent_report = self.agent_reports.get(name)
        return agent_report is not None and agent_report.bounds_volumes

    def volume_limits(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Nodes that take work: those that limit volume sizes, and those that do not."""
        working = sorted(name for name, one in self.swarm_nodes.items() if one.takes_work)
        bounded = tuple(filter(self.bounds_volumes, working))
        return bounded, tuple(one for one in working if one not in bounded)

    def nodes_with_agents(self) -> list[str]:
        return [name for name, one in self.swarm_nodes.items() if one.takes_work and self.agent_of(name) is not None]


def _by_node(swarm_nodes: Mapping[str, SwarmNode], agent_report: Iterable[AgentReport]) -> dict[str, AgentReport]:
    """The last report of each node, by its name: matched by Swarm node id, whatever names are reported.

    A report of a node that left the Swarm is kept under its name until another node has that name.
    """
    by_id = {one.node_id: one for one in agent_report}
    found = {name: by_id.pop(one.id) for name, one in swarm_nodes.items() if one.id in by_id}
    gone = {one.node: one for one in by_id.values() if one.node not in swarm_nodes}
    return {**gone, **found}


def _watched_fields(agent_report: Mapping[str, AgentReport]) -> dict[str, tuple[bool, Reason | None, tuple[str, ...]]]:
    return {name: (one.connected, one.engine_fault, one.fenced) for name, one in agent_report.items()}
