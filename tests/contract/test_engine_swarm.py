"""The engine contract on the Swarm engine, over a real Swarm of a manager and three workers that this file starts."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.dockerd import IMAGE
from tests.contract.local_agents import LocalAgents, processes_of
from tests.contract.swarm import Swarm, swarm_of

from commonage.domain.images import Environment
from commonage.domain.statuses import Phase
from commonage.engines.settings import SwarmSettings
from commonage.engines.swarm.engine import SwarmEngine
from commonage.testing.behaviour import Behaviour, shell_command
from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig, StartRequestFactory

pytestmark = pytest.mark.needs("docker")
HERE = Environment("here", "Of this very node", image=IMAGE)
BROKEN = Environment("broken", "Cannot be", image="Not An Image")


@pytest.fixture(scope="module")
def swarm() -> Iterator[Swarm]:
    with swarm_of(3) as swarm:
        yield swarm


def _command(behaviour: Behaviour) -> tuple[str, ...]:
    return ("no-such-command",) if behaviour.exit_code == 127 else shell_command(behaviour)


class SwarmRig(EngineRig):
    """A Swarm engine in a folder of its own. Orders are for the first worker."""

    def __init__(self, data: Path, swarm: Swarm, agents: LocalAgents | None = None, **settings: object) -> None:
        self.data = data
        self.swarm = swarm
        self.agents = agents
        # What the control plane alone sees; `data` is the folder that all nodes see.
        self.own = data.with_name(f"{data.name}-control")
        fields = {"without_agents": agents is None, **settings}
        self._settings = SwarmSettings(url=swarm.manager.daemon.url, **fields)  # type: ignore[arg-type]  # its fields
        self._engine: SwarmEngine | None = None
        self.start_request = StartRequestFactory(HERE, "worker1", _command, time.time)
        self.broken_environment = BROKEN

    async def engine(self) -> SwarmEngine:
        if self._engine is None:
            self._engine = SwarmEngine("site", self.own, self.data, agents=self.agents, settings=self._settings)
            await self._engine.open()
        return self._engine

    async def restart(self) -> SwarmEngine:
        if self._engine is not None:
            await self._engine.close()
        self._engine = None
        return await self.engine()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def processes(self, attempt: str) -> int:
        return len(processes_of(attempt))


@asynccontextmanager
async def swarm_rig(
    data: Path, swarm: Swarm, agents: LocalAgents | None = None, **settings: object
) -> AsyncIterator[SwarmRig]:
    """For one test; nothing of it is left in the Swarm."""
    rig = SwarmRig(data, swarm, agents, **settings)
    try:
        yield rig
    finally:
        engine = await rig.engine()
        for status in await engine.statuses():
            await engine.stop(status.attempt_id, 0)
        for status in await engine.statuses():
            await rig.phase(status.attempt_id, Phase.ENDED)
            await engine.forget(status.attempt_id)
        await engine.close()
        await _swept(rig)


async def _swept(rig: SwarmRig) -> None:
    """Networks of tenants go as soon as the last container has left them, a moment later from the workers."""

    async def is_gone() -> bool:
        rig.swarm.manager.daemon.remove_networks("commonage.tenant")
        return not [name for name in await asyncio.to_thread(rig.swarm.networks) if "commonage" in name]

    await rig.until(is_gone, "the tenants' networks are gone")


class TestSwarm(EngineContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path, swarm: Swarm) -> AsyncIterator[EngineRig]:
        async with swarm_rig(tmp_path, swarm, LocalAgents(swarm)) as rig:
            yield rig

    async def test_its_loops_are_named(self, rig: EngineRig) -> None:
        names = [iterations.name for iterations in (await rig.engine()).loops()]
        assert names == [
            "swarm: watch tasks",
            "swarm: remove services",
            "swarm: answer paused nodes",
            "swarm: limit logs",
            "swarm: clean up",
        ]

    async def test_no_rule_is_left_out(self, rig: EngineRig) -> None:
        """The contract passes over what an engine does not say it can."""
        can = (await rig.engine()).capabilities()
        assert (can.limits_memory, can.limits_cpu, can.mounts, can.ports, can.isolates_users) == (True,) * 5
