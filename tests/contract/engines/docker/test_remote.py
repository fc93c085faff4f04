"""The engine contract through a site link: a site agent drives the Docker engine, over a real daemon."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.firewall_tries import answer_hello
from tests.contract.engines.remote.rig import RemoteRealRig
from tests.contract.engines.remote.traffic_contract import TrafficContract
from tests.contract.engines.rigs import DockerRig, docker_rig
from tests.contract.harness.dockerd import Dockerd

from commonage.ports.engine import Engine
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig
from commonage.testing.exec_contract import ExecContract

pytestmark = pytest.mark.needs("docker")


HUB_PORT = 18932  # by which workloads address the hub; nobody listens there


class DockerAtSite(RemoteRealRig):
    def __init__(self, local: DockerRig, folder: Path) -> None:
        super().__init__(local, folder)
        self.local = local

    async def local_engine(self) -> Engine:
        self.local.settings = replace(self.local.settings, reaches=(HUB_PORT,), gateway_port=self.gateway.port)
        return self.local.make()


@pytest.fixture
async def rig(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[DockerAtSite]:
    async with docker_rig(tmp_path / "data", dockerd) as local:
        rig = DockerAtSite(local, tmp_path)
        yield rig
        await rig.close()


class TestDockerEngineAtSite(EngineContract, ExecContract, TrafficContract):
    async def test_containers_reach_the_platform_by_the_link(self, rig: DockerAtSite) -> None:
        fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
        server = await asyncio.start_server(answer_hello, "127.0.0.1", 0)
        async with server:
            rig.gateway_port = server.sockets[0].getsockname()[1]
            request = rig.start_request(
                Behaviour(),
                command=("sh", "-c", f'python3 -c "{fetch}" $HUB'),
                variables=(("HUB", f"http://127.0.0.1:{HUB_PORT}"),),
            )
            await rig.ended(request)
            assert await rig.lines(request.attempt_id) == ["hello"]

    async def test_has_all_capabilities_whose_lack_the_contract_passes_over(self, rig: EngineRig) -> None:
        can = (await rig.engine()).capabilities()
        assert (can.limits_memory, can.limits_cpu, can.mounts, can.ports, can.isolates_users) == (True,) * 5
