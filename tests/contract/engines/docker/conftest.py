"""The engine that most test files of this folder try; the others have a `rig`, or a `dockerd`, of their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.engines.rigs import DockerRig, docker_rig
from tests.contract.harness.dockerd import Dockerd


@pytest.fixture
async def rig(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[DockerRig]:
    async with docker_rig(tmp_path, dockerd) as rig:
        yield rig
