"""The machines of the site as they were when the Swarm and the agents were last asked. Used by the engine's parts."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

from commonage.domain.errors import EngineFailure
from commonage.domain.fleet import NodeReport
from commonage.engines.containers.hands import Away, Gone
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes import Machine, Wait, machines_of, notes_on, report_of
from commonage.engines.swarm.partings import ENDING, Partings, introduced
from commonage.ports.agents import Agents, Heard


class AgentAway(Away):
    """The machine's agent does not answer."""

    waiting_for = "its machine's agent, which does not answer"


class Fleet:
    """Who is there. `fault` is empty while the Swarm answers its watcher."""

    def __init__(self, client: Client, agents: Agents | None) -> None:
        self._client = client
        self.agents = agents
        self.machines: Mapping[str, Machine] = {}
        self.by_id: Mapping[str, Machine] = {}
        self.heard: Mapping[str, Heard] = {}
        self.fault = ""
        self._partings = Partings(agents)
        self._waits: Mapping[str, Wait] = {}
        self._ending: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._introduced: tuple[tuple[str, str], ...] = ()
        self._changed = False

    async def look(self) -> bool:
        """Ask both; True if something about machines changed since the last look. Raises EngineFailure."""
        await self.refresh()
        changed, self._changed = self._changed, False
        return changed

    async def refresh(self) -> None:
        """Ask both, and keep what changed for who looks. Raises EngineFailure."""
        machines = machines_of(await self._client.nodes())
        heard = {} if self.agents is None else {one.node: one for one in self.agents.heard()}
        waits = await self._partings.waits(machines, heard)
        now, before = (machines, _troubles(heard), waits), (self.machines, _troubles(self.heard), self._waits)
        self._changed = self._changed or now != before
        self.machines, self.heard, self._waits = machines, heard, waits
        self.by_id = {one.id: one for one in machines.values()}
        self._ending = {one: node for one, node in self._ending.items() if node in machines and machines[node].is_down}
        self._introduce()

    def _introduce(self) -> None:
        """Tell agents by whom they know that they are cut off, whenever that is another."""
        found = introduced(self.machines, self.heard, self._waits)
        self._partings.told(tuple(name for name, _ in found))
        if self.agents is not None and found != self._introduced:
            self.agents.introduce(found)
            self._introduced = found

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

    def is_down(self, node_id: str) -> bool:
        """True once the Swarm has given up this machine."""
        machine = self.by_id.get(node_id)
        return machine is not None and machine.is_down

    def why_lost(self, attempt_id: str, node_id: str, node: str) -> str:
        """Why what ran on this machine is to be given up, in words; empty while it is not."""
        machine = self.by_id.get(node_id)
        if machine is None and node_id:
            return f"its machine {node} is not in the Swarm any more"
        if self.was_fenced(attempt_id, node):
            return f"the Docker daemon of {node} did not answer, and its agent ended what ran there"
        if machine is not None and machine.is_down and node not in self._waits:
            return f"its machine {node} does not answer: {machine.why_down}"
        return ""

    def was_fenced(self, attempt_id: str, node: str) -> bool:
        """True if the machine's agent ended it, as the daemon there could not."""
        heard = self.heard.get(node)
        return heard is not None and attempt_id in heard.fenced

    async def have_ended(self, attempt_id: str, node: str) -> bool:
        """Have its agent end what is to be given up; where that is away, what ran there stands still by now. False for
        a machine that is not in the Swarm any more: nobody can tell.

        Raises EngineFailure while it may run there: nothing of it may begin elsewhere yet.
        """
        agents = self.agent_of(node)
        if self.was_fenced(attempt_id, node):
            return True
        if agents is None:
            if node in self._waits:  # its link was lost since
                raise EngineFailure(f"on {node}, {self._waits[node].why}", retryable=True)
            self._given_up.add(attempt_id)
            return node in self.machines
        self._ending[attempt_id] = node
        try:
            gone = await agents.fence(node, [attempt_id])
        except EngineFailure as error:
            raise EngineFailure(f"it is being ended on {node} first: {error.message}", retryable=True) from error
        if attempt_id not in gone:
            raise EngineFailure(f"it is being ended on {node} first: its processes do not end", retryable=True)
        self._ending.pop(attempt_id, None)
        return True

    async def answer_paused(self, live: Collection[str]) -> None:
        """Say of what agents paused as they were cut off whether it goes on, or is to end: as it may have begun anew.

        `live` are the attempts that have not ended. What was given up does not go on, also before that is written down.
        """
        self._given_up &= set(live)
        if not self.fault:
            await asyncio.gather(*(self._answer(one, live) for one in self.heard.values() if one.paused))

    async def _answer(self, heard: Heard, live: Collection[str]) -> None:
        agents, machine = self.agent_of(heard.node), self.machines.get(heard.node)
        if agents is None or machine is None:
            return
        over = [one for one in heard.paused if one not in live]
        going = [one for one in heard.paused if one in live and one not in self._given_up and not machine.is_down]
        with suppress(EngineFailure):  # it says again what it paused
            if going:
                await agents.go_on(heard.node, going)
            if over:
                await agents.fence(heard.node, over)

    def reports(self) -> list[NodeReport]:
        """What is to be said of each machine now."""
        waits = {**dict.fromkeys(self._ending.values(), ENDING), **self._waits}
        return [
            report_of(machine, self.heard.get(name), waits.get(name)) for name, machine in sorted(self.machines.items())
        ]

    def notes(self) -> tuple[str, ...]:
        """What an admin should know of the machines, in sentences."""
        return notes_on(self.machines, self.heard)

    @property
    def has_agents(self) -> bool:
        """True if every machine has one, whose walls keep containers from what is not their tenant's."""
        return self.machines.keys() <= self.heard.keys()

    def bounds_volumes(self, name: str) -> bool:
        """True if its agent says that the daemon there holds a volume to its size."""
        heard = self.heard.get(name)
        return heard is not None and heard.bounds_volumes

    def that_bound_volumes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the machines that take work those that do, and those that do not."""
        working = sorted(
            name for name, one in self.machines.items() if not one.is_down and one.availability == "active"
        )
        bounded = tuple(filter(self.bounds_volumes, working))
        return bounded, tuple(one for one in working if one not in bounded)

    def with_agents(self) -> list[str]:
        """The machines that take work and whose agents answer."""
        return [
            name for name, one in self.machines.items()
            if not one.is_down and one.availability == "active" and self.agent_of(name) is not None
        ]  # fmt: skip


def _troubles(heard: Mapping[str, Heard]) -> dict[str, tuple[bool, str, tuple[str, ...]]]:
    return {name: (one.connected, one.engine_fault, one.fenced) for name, one in heard.items()}
