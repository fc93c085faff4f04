"""Commands in attempts whose engine was killed: none of their processes is left after its next start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.engines.rigs import DockerRig, ProcessRig, docker_rig, process_rig
from tests.contract.harness.dockerd import Dockerd
from tests.contract.harness.processes import commands_beside

from commonage.engines.docker.engine import DockerEngine
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings
from commonage.testing.behaviour import Aside
from commonage.testing.engine_rig import FOREVER

pytestmark = pytest.mark.anyio


async def _leaves_nothing(
    rig: ProcessRig | DockerRig, first: ProcessEngine | DockerEngine, second: ProcessEngine | DockerEngine
) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    for terminal in (False, True):
        aside = Aside(prints="here", lasts=True, leaves_child=terminal)
        stream = await first.exec(request.attempt_id, rig.aside(aside))
        assert await stream.read() is not None

    async def are_there() -> bool:
        return len(commands_beside(request.attempt_id)) == 3

    await rig.until(are_there, "both commands and the child of one are there")
    await second.open()  # as if the first one were no more
    try:

        async def are_gone() -> bool:
            return not commands_beside(request.attempt_id)

        await rig.until(are_gone, "they are gone")
        stream = await second.exec(request.attempt_id, rig.aside(Aside(prints="again", lasts=True)))
        assert await stream.read() == (1, b"again\n")
        assert commands_beside(request.attempt_id)
    finally:
        await second.close()
    assert not commands_beside(request.attempt_id)


@pytest.mark.parametrize("cgroups", [pytest.param(True, marks=pytest.mark.needs("cgroups")), False])
async def test_processes(tmp_path: Path, cgroups: bool) -> None:
    settings = ProcessSettings(node_name="here", cgroups=cgroups)
    async with process_rig(tmp_path, settings) as rig:
        await _leaves_nothing(rig, await rig.engine(), ProcessEngine("site", tmp_path, settings=settings))


@pytest.fixture
async def docker(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[DockerRig]:
    async with docker_rig(tmp_path, dockerd) as rig:
        yield rig


@pytest.mark.needs("docker")
async def test_containers(docker: DockerRig) -> None:
    second = DockerEngine("site", docker.data, settings=docker.settings)
    await _leaves_nothing(docker, await docker.engine(), second)
