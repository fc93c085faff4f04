"""The engine that most test files of this folder try; the others have a `rig`, or a `dockerd`, of their own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.engines.rigs import DockerRig, docker_rig
from tests.contract.harness.dockerd import Dockerd, dockerd_with_image


@pytest.fixture
async def rig(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[DockerRig]:
    async with docker_rig(tmp_path, dockerd) as rig:
        yield rig


@pytest.fixture
def mapping(tmp_path: Path) -> Iterator[Dockerd]:
    """A daemon that maps root of containers to user 300000. Only this daemon sees the files of the mapping."""
    for name in ("subuid", "subgid"):
        (tmp_path / name).write_text("nobody:300000:65536\nnogroup:300000:65536\n")
    see = " && ".join(f"mount --bind {tmp_path}/{name} /etc/{name}" for name in ("subuid", "subgid"))
    touch = "touch /etc/subuid /etc/subgid"
    unshared = ("unshare", "--mount", "sh", "-c", f'{touch} && {see} && exec "$@"', "sh")
    with dockerd_with_image("--userns-remap", "nobody:nogroup", before=unshared) as daemon:
        yield daemon
