"""The engine contract through a site link: a site agent drives the Kubernetes engine, over the double of a cluster."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.firewall_tries import answer_hello
from tests.contract.engines.kubernetes.test_contract import rig_on_double
from tests.contract.engines.remote.rig import RemoteRealRig
from tests.kubernetes.rig import KubernetesRig

from commonage.ports.engine import Engine
from commonage.server.processes.ports import free_port
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_contract import EngineContract


class KubernetesAtSite(RemoteRealRig):
    """Pods reach the agent by a name, as by that of a Service. `hub_port`: nobody listens there."""

    def __init__(self, local: KubernetesRig, folder: Path) -> None:
        super().__init__(local, folder)
        self.local, self.hub_port = local, free_port()

    async def local_engine(self) -> Engine:
        self.local.settings = replace(
            self.local.settings, address="localhost", reaches=(self.hub_port,), gateway_port=self.gateway.port
        )
        return self.local.make()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[KubernetesAtSite]:
    async with rig_on_double(tmp_path) as local:
        rig = KubernetesAtSite(local, tmp_path)
        yield rig
        await rig.close()


class TestKubernetesOnDoubleAtSite(EngineContract):
    async def test_pods_reach_the_platform_by_the_link(self, rig: KubernetesAtSite) -> None:
        fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
        server = await asyncio.start_server(answer_hello, "127.0.0.1", 0)
        async with server:
            rig.gateway_port = server.sockets[0].getsockname()[1]
            request = rig.start_request(
                Behaviour(),
                command=("sh", "-c", f'python3 -c "{fetch}" $HUB'),
                variables=(("HUB", f"http://127.0.0.1:{rig.hub_port}"),),
            )
            await rig.ended(request)
            assert await rig.lines(request.attempt_id) == ["hello"]
