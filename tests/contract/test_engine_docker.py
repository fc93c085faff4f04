"""The engine contract on the Docker engine, over a real daemon that this file starts for itself."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tests.contract.dockerd import IMAGE, NO_RULES, Dockerd, minimal_image, new_folder

from commonage.domain.images import Environment
from commonage.domain.statuses import Phase
from commonage.engines.docker.engine import DockerEngine
from commonage.engines.settings import DockerSettings
from commonage.ports.devices import Devices
from commonage.testing.behaviour import Behaviour, shell_command
from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig, StartRequestFactory
from commonage.testing.exec_contract import ExecContract

pytestmark = pytest.mark.needs("docker")
HERE = Environment("here", "Of this very node", image=IMAGE)
BROKEN = Environment("broken", "Cannot be", image="Not An Image")


@contextmanager
def dockerd_with_image(*arguments: str, before: tuple[str, ...] = (), rules: bool = False) -> Iterator[Dockerd]:
    """A daemon with the test image. `rules`: with firewall between networks; one test file at a time may have those."""
    daemon = Dockerd(new_folder(), *([] if rules else [NO_RULES]), *arguments, before=before)
    try:
        daemon.start()
        daemon.ask("POST", "/images/create?fromSrc=-&repo=commonage-test&tag=1", content=minimal_image())
        yield daemon
    finally:
        daemon.remove()


@pytest.fixture(scope="module")
def dockerd() -> Iterator[Dockerd]:
    with dockerd_with_image() as daemon:
        yield daemon


def processes_of(attempt: str) -> list[int]:
    """Every process that carries the attempt's mark."""
    mark = f"COMMONAGE_ATTEMPT_ID={attempt}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _command(behaviour: Behaviour) -> tuple[str, ...]:
    return ("no-such-command",) if behaviour.exit_code == 127 else shell_command(behaviour)


class DockerRig(EngineRig):
    """A Docker engine in a folder of its own."""

    def __init__(self, data: Path, settings: DockerSettings) -> None:
        self.data = data
        self._settings = settings
        self._engine: DockerEngine | None = None
        self.devices: Devices | None = None
        self.start_request = StartRequestFactory(HERE, "here", _command, time.time)
        self.broken_environment = BROKEN

    @classmethod
    def at(cls, data: Path, url: str, **settings: object) -> "DockerRig":
        return cls(data, DockerSettings(url=url, node_name="here", **settings))  # type: ignore[arg-type]  # fields of the settings

    async def engine(self) -> DockerEngine:
        if self._engine is None:
            self._engine = DockerEngine("site", self.data, devices=self.devices, settings=self._settings)
            await self._engine.open()
        return self._engine

    async def restart(self) -> DockerEngine:
        if self._engine is not None:
            await self._engine.close()
        return await self.reopen()

    async def reopen(self) -> DockerEngine:
        """Open a new one where the old one was closed, or killed."""
        self._engine = None
        return await self.engine()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def processes(self, attempt: str) -> int:
        return len(processes_of(attempt))


@asynccontextmanager
async def docker_rig(data: Path, daemon: Dockerd, **settings: object) -> AsyncIterator[DockerRig]:
    rig = DockerRig.at(data, daemon.url, **settings)
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
        daemon.remove_networks("commonage.tenant")


class TestDocker(EngineContract, ExecContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[EngineRig]:
        async with docker_rig(tmp_path, dockerd) as rig:
            yield rig

    async def test_its_loops_are_named(self, rig: EngineRig) -> None:
        names = [iterations.name for iterations in (await rig.engine()).loops()]
        assert names == ["docker: listen to events", "docker: limit logs", "docker: clean up"]

    async def test_no_rule_is_left_out(self, rig: EngineRig) -> None:
        """The contract passes over what an engine does not say it can."""
        can = (await rig.engine()).capabilities()
        assert (can.limits_memory, can.limits_cpu, can.mounts, can.ports, can.isolates_users) == (True,) * 5
