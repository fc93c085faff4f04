"""Rigs of the engine contract for the real engines, each with the engine's files in a folder of its own."""

from __future__ import annotations

import asyncio
import signal
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar

from tests.contract.harness.dockerd import IMAGE, Dockerd
from tests.contract.harness.local_agents import LocalAgents
from tests.contract.harness.processes import processes_of
from tests.contract.harness.swarm import Swarm

from commonage.domain.images import Environment
from commonage.domain.statuses import Phase
from commonage.engines.docker.engine import DockerEngine
from commonage.engines.kubernetes.engine import KubernetesEngine
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.process.processes import send
from commonage.engines.settings import DockerSettings, ProcessSettings, SwarmSettings
from commonage.engines.swarm.engine import SwarmEngine
from commonage.ports.devices import Devices
from commonage.testing.behaviour import Behaviour, shell_command
from commonage.testing.engine_rig import EngineRig, StartRequestFactory

HERE = Environment("here", "This machine's own shell", python="/bin/sh")
IN_IMAGE = Environment("here", "Of this very node", image=IMAGE)
BROKEN_IMAGE = Environment("broken", "Cannot be", image="Not An Image")
E = TypeVar("E", ProcessEngine, DockerEngine, SwarmEngine, KubernetesEngine)


def command_of(behaviour: Behaviour) -> tuple[str, ...]:
    return ("no-such-command",) if behaviour.exit_code == 127 else shell_command(behaviour)


class RealRig(EngineRig, Generic[E]):
    """An engine in real time, whose workloads are processes that this kernel shows."""

    _engine: E | None = None

    @abstractmethod
    def make(self) -> E: ...

    async def engine(self) -> E:
        if self._engine is None:
            self._engine = self.make()
            await self._engine.open()
        return self._engine

    async def restart(self) -> E:
        if self._engine is not None:
            await self._engine.close()
        return await self.reopen()

    async def reopen(self) -> E:
        """Open a new one where the old one was closed, or killed."""
        self._engine = None
        return await self.engine()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def processes(self, attempt: str) -> int:
        return len(processes_of(attempt))

    async def end_all(self, *, forget: bool) -> None:
        """End all attempts, and close the engine."""
        engine = await self.engine()
        living = [status.attempt_id for status in await engine.statuses() if status.phase is not Phase.ENDED]
        for attempt in living:
            await engine.stop(attempt, 0)
        for attempt in living:
            await self.phase(attempt, Phase.ENDED)
        if forget:
            for status in await engine.statuses():
                await engine.forget(status.attempt_id)
        await engine.close()


class ProcessRig(RealRig[ProcessEngine]):
    def __init__(self, data: Path, settings: ProcessSettings, devices: Devices | None = None) -> None:
        self.data = data
        self.settings = settings
        self.devices = devices
        self.start_request = StartRequestFactory(HERE, "here", command_of, time.time)
        self.broken_environment = Environment("broken", "Cannot be", python="/nonexistent/python")

    def make(self) -> ProcessEngine:
        return ProcessEngine("local", self.data, devices=self.devices, settings=self.settings)


@asynccontextmanager
async def process_rig(data: Path, settings: ProcessSettings) -> AsyncIterator[ProcessRig]:
    rig = ProcessRig(data, settings)
    try:
        yield rig
    finally:
        engine = await rig.engine()
        await rig.end_all(forget=False)
        for attempt in {status.attempt_id for status in await engine.statuses()}:
            send(processes_of(attempt), signal.SIGKILL)


class DockerRig(RealRig[DockerEngine]):
    def __init__(self, data: Path, url: str, **settings: object) -> None:
        self.data = data
        self.settings = DockerSettings(url=url, node_name="here", **settings)  # type: ignore[arg-type]  # its fields
        self.devices: Devices | None = None
        self.start_request = StartRequestFactory(IN_IMAGE, "here", command_of, time.time)
        self.broken_environment = BROKEN_IMAGE

    def make(self) -> DockerEngine:
        return DockerEngine("local", self.data, devices=self.devices, settings=self.settings)


@asynccontextmanager
async def docker_rig(data: Path, daemon: Dockerd, **settings: object) -> AsyncIterator[DockerRig]:
    rig = DockerRig(data, daemon.url, **settings)
    try:
        yield rig
    finally:
        await rig.end_all(forget=True)
        daemon.remove_networks("commonage.tenant")


class SwarmRig(RealRig[SwarmEngine]):
    """Start requests are for the first worker."""

    def __init__(self, data: Path, swarm: Swarm, agents: LocalAgents | None = None, **settings: object) -> None:
        self.data = data
        self.swarm = swarm
        self.agents = agents
        # What the control plane alone sees; `data` is the folder that all nodes see.
        self.own = data.with_name(f"{data.name}-control")
        fields = {"without_agents": agents is None, **settings}
        self.settings = SwarmSettings(url=swarm.manager.daemon.url, **fields)  # type: ignore[arg-type]  # its fields
        self.start_request = StartRequestFactory(IN_IMAGE, "worker1", command_of, time.time)
        self.broken_environment = BROKEN_IMAGE

    def make(self) -> SwarmEngine:
        return SwarmEngine("local", self.own, self.data, agents=self.agents, settings=self.settings)


@asynccontextmanager
async def swarm_rig(
    data: Path, swarm: Swarm, agents: LocalAgents | None = None, **settings: object
) -> AsyncIterator[SwarmRig]:
    """For one test; nothing of it is left in the Swarm."""
    rig = SwarmRig(data, swarm, agents, **settings)
    try:
        yield rig
    finally:
        await rig.end_all(forget=True)

        async def networks_are_gone() -> bool:  # a moment after the last container, later from the workers
            swarm.manager.daemon.remove_networks("commonage.tenant")
            return not [name for name in await asyncio.to_thread(swarm.networks) if "commonage" in name]

        await rig.until(networks_are_gone, "the tenants' networks are gone")
