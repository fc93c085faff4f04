"""The engine contract through a site link: a site agent drives the Kubernetes engine, over the double of a cluster."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.kubernetes.test_contract import rig_on_double
from tests.contract.engines.remote.platform_contract import PlatformContract
from tests.contract.engines.remote.rig import RemoteRealRig
from tests.kubernetes.rig import KubernetesRig

from commonage.ports.engine import Engine
from commonage.testing.engine_contract import EngineContract


class KubernetesAtSite(RemoteRealRig):
    """Pods reach the agent by a name, as by that of a Service."""

    def __init__(self, local: KubernetesRig, folder: Path) -> None:
        super().__init__(local, folder)
        self.local = local

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


class TestKubernetesOnDoubleAtSite(EngineContract, PlatformContract):
    """All is inherited."""
