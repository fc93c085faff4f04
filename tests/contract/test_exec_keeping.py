"""What an engine that ended without a word leaves of commands beside attempts: nothing, once it is there again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.dockerd import Dockerd
from tests.contract.test_engine_docker import DockerRig, docker_rig, dockerd_with_image
from tests.contract.test_engine_process import ProcessRig, process_rig

from commonage.engines.docker.engine import DockerEngine
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings
from commonage.testing.behaviour import Aside
from commonage.testing.engine_rig import FOREVER

pytestmark = pytest.mark.anyio


def beside(attempt: str) -> list[int]:
    """The processes of commands beside it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if f"COMMONAGE_ATTEMPT_ID={attempt}".encode() in words and any(
            one.startswith(b"COMMONAGE_EXEC=") for one in words
        ):
            found.append(int(entry.name))
    return found


async def _leaves_nothing(
    rig: ProcessRig | DockerRig, first: ProcessEngine | DockerEngine, second: ProcessEngine | DockerEngine
) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    for terminal in (False, True):
        aside = Aside(prints="here", lasts=True, leaves_child=terminal)
        stream = await first.exec(request.attempt_id, rig.aside(aside))
        assert await stream.read() is not None

    async def are_there() -> bool:
        return len(beside(request.attempt_id)) == 3

    await rig.until(are_there, "both commands and the child of one are there")
    await second.open()  # as if the first one were no more
    try:

        async def are_gone() -> bool:
            return not beside(request.attempt_id)

        await rig.until(are_gone, "they are gone")
        stream = await second.exec(request.attempt_id, rig.aside(Aside(prints="again", lasts=True)))
        assert await stream.read() == (1, b"again\n")
        assert beside(request.attempt_id)
    finally:
        await second.close()
    assert not beside(request.attempt_id)


@pytest.mark.parametrize("cgroups", [pytest.param(True, marks=pytest.mark.needs("cgroups")), False])
async def test_processes(tmp_path: Path, cgroups: bool) -> None:
    settings = ProcessSettings(node_name="here", cgroups=cgroups)
    async with process_rig(tmp_path, settings) as rig:
        await _leaves_nothing(rig, await rig.engine(), ProcessEngine("site", tmp_path, settings=settings))


@pytest.fixture(scope="module")
def dockerd() -> Iterator[Dockerd]:
    with dockerd_with_image() as daemon:
        yield daemon


@pytest.fixture
async def docker(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[DockerRig]:
    async with docker_rig(tmp_path, dockerd) as rig:
        yield rig


@pytest.mark.needs("docker")
async def test_containers(docker: DockerRig) -> None:
    second = DockerEngine("site", docker.data, settings=docker._settings)
    await _leaves_nothing(docker, await docker.engine(), second)
