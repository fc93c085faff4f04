"""The engine contract through a site link: a site agent drives the Docker engine, over a real daemon."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.engines.remote.rig import RemoteRealRig
from tests.contract.engines.rigs import docker_rig
from tests.contract.harness.dockerd import Dockerd

from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig
from commonage.testing.exec_contract import ExecContract

pytestmark = pytest.mark.needs("docker")


@pytest.fixture
async def rig(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[EngineRig]:
    async with docker_rig(tmp_path / "data", dockerd) as local:
        rig = RemoteRealRig(local, tmp_path)
        yield rig
        await rig.close()


class TestDockerEngineAtSite(EngineContract, ExecContract):
    async def test_has_all_capabilities_whose_lack_the_contract_passes_over(self, rig: EngineRig) -> None:
        can = (await rig.engine()).capabilities()
        assert (can.limits_memory, can.limits_cpu, can.mounts, can.ports, can.isolates_users) == (True,) * 5
