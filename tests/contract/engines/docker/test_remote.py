"""The engine contract through a site link: a site agent drives the Docker engine, over a real daemon."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.remote.platform_contract import PlatformContract
from tests.contract.engines.remote.rig import RemoteRealRig
from tests.contract.engines.remote.traffic_contract import TrafficContract
from tests.contract.engines.rigs import DockerRig, docker_rig
from tests.contract.harness.dockerd import Dockerd

from commonage.ports.engine import Engine
from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig
from commonage.testing.exec_contract import ExecContract

pytestmark = pytest.mark.needs("docker")


class DockerAtSite(RemoteRealRig):
    def __init__(self, local: DockerRig, folder: Path) -> None:
        super().__init__(local, folder)
        self.local = local

    async def local_engine(self) -> Engine:
        self.local.settings = replace(self.local.settings, reaches=(self.hub_port,), gateway_port=self.gateway.port)
        return self.local.make()


@pytest.fixture
async def rig(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[DockerAtSite]:
    async with docker_rig(tmp_path / "data", dockerd) as local:
        rig = DockerAtSite(local, tmp_path)
        yield rig
        await rig.close()


class TestDockerEngineAtSite(EngineContract, ExecContract, PlatformContract, TrafficContract):
    async def test_has_all_capabilities_whose_lack_the_contract_passes_over(self, rig: EngineRig) -> None:
        can = (await rig.engine()).capabilities()
        assert (can.limits_memory, can.limits_cpu, can.mounts, can.ports, can.isolates_users) == (True,) * 5
