"""Agents on the nodes of the tests' Swarm that need no link: they ask the node's daemon, and this kernel."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote

from tests.contract.harness.dockerd import Dockerd
from tests.contract.harness.processes import processes_of
from tests.contract.harness.swarm import Swarm

from commonage.agent.containers.mounts import Mounts
from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Device, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import PullingImage
from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.engines.containers.usage import measure, owners_of
from commonage.ports.agents import AgentReport, Agents, OnProgress
from commonage.ports.devices import ShareAssignment
from commonage.ports.registry import PullToken


class LocalAgents(Agents):
    """One for each node. `devices` are those of each, by its name; `away` are nodes whose agent is not there.

    They know of no other nodes, and so never take themselves for cut off. On those in `stuck` nothing can be ended.
    """

    def __init__(self, swarm: Swarm, devices: Mapping[str, tuple[Device, ...]] | None = None) -> None:
        self._swarm = swarm
        self._devices = dict(devices or {})
        self.away: set[str] = set()
        self.stuck: set[str] = set()
        self.faults: dict[str, Reason] = {}
        self.fenced: dict[str, tuple[str, ...]] = {}
        self.enforced: list[tuple[str, ShareAssignment]] = []
        self.released: list[tuple[str, str]] = []
        self._last: dict[str, float] = {}
        # All nodes have one kernel, and may each have an attempt's folders.
        self.mounts = {name: Mounts(one.daemon.folder / "mounts", "") for name, one in swarm.machines.items()}
        self._names: dict[str, str] = {}  # by Swarm node id

    async def bindings(self) -> Mapping[str, str]:
        """Each node is the node that its daemon says it is, now or before."""
        known = set(self._names.values())
        for name in set(self._swarm.machines) - known:
            self._names[await asyncio.to_thread(self._swarm.node_id, name)] = name
        return self._names

    def _id_of(self, name: str) -> str:
        return next((node_id for node_id, one in self._names.items() if one == name), "")

    def agent_reports(self) -> Sequence[AgentReport]:
        self._last.update({name: time.monotonic() for name in self._swarm.machines if name not in self.away})
        return [
            AgentReport(
                name,
                NodeReport(name, 4000, 16384, self._devices.get(name, ()), 100_000, (("rack", "7"),)),
                time.time(),
                self._last.get(name, 0.0),
                name not in self.away,
                self.faults.get(name),
                self.fenced.get(name, ()),
                mounts=True,
                node_id=self._id_of(name),
            )
            for name in self._swarm.machines
        ]

    async def reaches(self, node_id: str, address: str) -> bool:
        return self._names[node_id] not in self.away

    def _daemon(self, node: str) -> Dockerd:
        if node in self.away:
            raise EngineFailure(f"the agent of {node} does not answer", retryable=True)
        return self._swarm.machines[node].daemon

    def _containers(self, node: str) -> dict[str, tuple[str, int]]:
        """(attempt, first process) by container."""
        daemon = self._daemon(node)
        found = {}
        try:
            for one in daemon.containers(label=["commonage.attempt"]):
                with suppress(RuntimeError):
                    pid = daemon.ask("GET", f"/containers/{one['Id']}/json")["State"]["Pid"]
                    found[one["Id"]] = (one["Labels"]["commonage.attempt"], pid)
        except OSError as error:
            raise EngineFailure(f"the Docker daemon of {node} does not answer: {error}", retryable=True) from error
        return found

    async def measure(self, node_id: str) -> Sequence[Measurement]:
        containers = await asyncio.to_thread(self._containers, self._names[node_id])
        return [found for one, pid in containers.values() if pid and (found := measure(one, pid))]

    async def owners(self, node_id: str, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """All nodes are this one, as far as the kernel goes."""
        attempts = {}
        for name in set(self._swarm.machines) - self.away:
            containers = await asyncio.to_thread(self._containers, name)
            attempts.update({container: attempt for container, (attempt, _) in containers.items()})
        return owners_of(pids, attempts)

    async def enforce(self, node_id: str, hold: ShareAssignment) -> Mapping[str, str]:
        node = self._names[node_id]
        self._daemon(node)
        self.enforced.append((node, hold))
        return {"CONFINED_AT": node}

    async def mount(self, node_id: str, attempt_id: str, sources: Sequence[tuple[str, str]]) -> Sequence[str]:
        node = self._names[node_id]
        self._daemon(node)
        return await asyncio.to_thread(self.mounts[node].mount, attempt_id, sources)

    async def unmount(self, node_id: str, attempt_id: str) -> None:
        node = self._names[node_id]
        self._daemon(node)
        await asyncio.to_thread(self.mounts[node].remove, [attempt_id])

    async def release(self, node_id: str, attempt_id: str) -> None:
        self.released.append((self._names[node_id], attempt_id))

    async def pull(self, node_id: str, image: str, on_progress: OnProgress, token: PullToken | None = None) -> None:
        daemon = self._daemon(self._names[node_id])

        def have() -> None:
            try:
                daemon.ask("GET", f"/images/{quote(image)}/json")
            except RuntimeError:
                on_progress(PullingImage(image=image), 0.5)
                answer = daemon.ask("POST", f"/images/create?fromImage={quote(image)}")
                raise EngineFailure(f"the image {image} cannot be fetched: {json.dumps(str(answer))}") from None

        try:
            await asyncio.to_thread(have)
        except RuntimeError as error:
            raise EngineFailure(str(error)) from error

    async def fence(self, node_id: str, attempt_ids: Collection[str]) -> Collection[str]:
        node = self._names[node_id]
        self._daemon(node)
        if node in self.stuck:
            return []
        for attempt in attempt_ids:
            while there := processes_of(attempt):  # what is killed is there for a moment where many wait for a core
                for number in (signal.SIGSTOP, signal.SIGKILL):  # as the real one does
                    for pid in there:
                        with suppress(ProcessLookupError):
                            os.kill(pid, number)
                await asyncio.sleep(0.02)
        return list(attempt_ids)

    async def unpause(self, node_id: str, attempt_ids: Collection[str]) -> None:
        pass
