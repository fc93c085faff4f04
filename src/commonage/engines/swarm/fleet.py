"""The machines of the site as they were when the Swarm and the agents were last asked. Used by the engine's parts."""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.fleet import NodeReport
from commonage.engines.containers.hands import Away, Gone
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes import Machine, machines_of, report_of
from commonage.ports.agents import Agents, Heard


class AgentAway(Away):
    """The machine's agent does not answer."""

    waiting_for = "its machine's agent, which does not answer"


class Fleet:
    """Who is there. `fault` is empty while the Swarm answers."""

    def __init__(self, client: Client, agents: Agents | None) -> None:
        self._client = client
        self.agents = agents
        self.machines: Mapping[str, Machine] = {}
        self.by_id: Mapping[str, Machine] = {}
        self.heard: Mapping[str, Heard] = {}
        self.fault = ""

    async def look(self) -> bool:
        """Ask both; True if something about machines changed. Raises EngineFailure."""
        machines = machines_of(await self._client.nodes())
        heard = {} if self.agents is None else {one.node: one for one in self.agents.heard()}
        changed = machines != self.machines or _troubles(heard) != _troubles(self.heard)
        self.machines, self.heard = machines, heard
        self.by_id = {one.id: one for one in machines.values()}
        self.fault = ""
        return changed

    def machine(self, name: str) -> Machine:
        """The machine of this name. Raises Gone."""
        found = self.machines.get(name)
        if found is None:
            there = ", ".join(sorted(self.machines)) or "none"
            raise Gone(f"there is no machine {name} in the Swarm any more (there are: {there})")
        if found.is_down:
            raise Gone(f"its machine {name} does not answer: {found.why_down}")
        return found

    def agent_of(self, name: str) -> Agents | None:
        """The agents, if there is one on this machine that answers."""
        heard = self.heard.get(name)
        return self.agents if heard is not None and heard.connected else None

    def why_lost(self, attempt_id: str, node_id: str, node: str) -> str:
        """Why what ran on this machine is to be given up, in words; empty while it is not."""
        machine = self.by_id.get(node_id)
        if machine is None and node_id:
            return f"its machine {node} is not in the Swarm any more"
        if machine is not None and machine.is_down:
            return f"its machine {node} does not answer: {machine.why_down}"
        if self.was_fenced(attempt_id, node):
            return f"the Docker daemon of {node} did not answer, and the machine's agent ended what ran there"
        return ""

    def was_fenced(self, attempt_id: str, node: str) -> bool:
        """True if the machine's agent ended it, as the daemon there could not."""
        heard = self.heard.get(node)
        return heard is not None and attempt_id in heard.fenced

    def reports(self) -> list[NodeReport]:
        """What is to be said of each machine now."""
        return [report_of(machine, self.heard.get(name)) for name, machine in sorted(self.machines.items())]

    def with_agents(self) -> list[str]:
        """The machines that take work and whose agents answer."""
        return [
            name for name, one in self.machines.items()
            if not one.is_down and one.availability == "active" and self.agent_of(name) is not None
        ]  # fmt: skip


def _troubles(heard: Mapping[str, Heard]) -> dict[str, tuple[bool, str, tuple[str, ...]]]:
    return {name: (one.connected, one.engine_fault, one.fenced) for name, one in heard.items()}
