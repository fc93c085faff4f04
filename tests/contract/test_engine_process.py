"""The engine contract on the process engine, held by control groups where this machine has them, and without them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from commonage.domain.environments import Environment
from commonage.domain.sightings import Seen
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.process.processes import send
from commonage.engines.process.settings import ProcessSettings
from commonage.testing.behaviour import Behaviour, shell_command
from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig, Orders

HERE = Environment("here", "This machine's own shell", python="/bin/sh")


def processes_of(attempt: str) -> list[int]:
    """Every process that carries the attempt's mark, its shim excepted."""
    mark = f"COMMONAGE_ATTEMPT_ID={attempt}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_marked = entry.name.isdigit() and mark in (entry / "environ").read_bytes()
            if is_marked and b"shim.sh" not in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _command(behaviour: Behaviour) -> tuple[str, ...]:
    return ("no-such-command",) if behaviour.exit_code == 127 else shell_command(behaviour)


class ProcessRig(EngineRig):
    """A process engine in a folder of its own."""

    def __init__(self, data: Path, settings: ProcessSettings) -> None:
        self._data = data
        self._settings = settings
        self._engine: ProcessEngine | None = None
        self.orders = Orders(HERE, "here", _command, time.time)
        self.broken_environment = Environment("broken", "Cannot be", python="/nonexistent/python")

    async def engine(self) -> ProcessEngine:
        if self._engine is None:
            self._engine = ProcessEngine("site", self._data, settings=self._settings)
            await self._engine.open()
        return self._engine

    async def restart(self) -> ProcessEngine:
        if self._engine is not None:
            await self._engine.close()
        self._engine = None
        return await self.engine()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def processes(self, attempt: str) -> int:
        return len(processes_of(attempt))


@asynccontextmanager
async def process_rig(data: Path, settings: ProcessSettings) -> AsyncIterator[ProcessRig]:
    rig = ProcessRig(data, settings)
    try:
        yield rig
    finally:
        engine = await rig.engine()
        living = [sighting for sighting in await engine.sightings() if sighting.seen is not Seen.ENDED]
        for sighting in living:
            await engine.stop(sighting.attempt_id, 0)
        for sighting in living:
            await rig.seen(sighting.attempt_id, Seen.ENDED)
        await engine.close()
        for attempt in {sighting.attempt_id for sighting in await engine.sightings()}:
            send(processes_of(attempt), 9)


@pytest.mark.needs("cgroups")
class TestWithControlGroups(EngineContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[EngineRig]:
        async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
            assert (await rig.engine()).capabilities().limits_memory
            yield rig


class TestWithoutControlGroups(EngineContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[EngineRig]:
        async with process_rig(tmp_path, ProcessSettings(node_name="here", cgroups=False)) as rig:
            assert not (await rig.engine()).capabilities().limits_memory
            yield rig
