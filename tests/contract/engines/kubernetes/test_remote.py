"""The engine contract through a site link: a site agent drives the Kubernetes engine, over the double of a cluster."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.kubernetes.test_contract import rig_on_double
from tests.contract.engines.remote.platform_contract import PlatformContract
from tests.contract.engines.remote.rig import RemoteRealRig
from tests.kubernetes.namespaces_contract import POLICIES, physics
from tests.kubernetes.rig import KubernetesRig

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import WaitingForNamespace
from commonage.domain.tenants import Tenant
from commonage.engines.kubernetes.client import Client
from commonage.ports.engine import Engine
from commonage.testing.engine_contract import EngineContract

pytestmark = pytest.mark.anyio


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


async def test_the_site_keeps_namespaces_by_the_link_and_goes_on_without_it(tmp_path: Path) -> None:
    async with rig_on_double(tmp_path) as local:
        local.settings = replace(local.settings, namespaces="kept")
        rig, cluster = KubernetesAtSite(local, tmp_path), Client(local.settings.kubeconfig)
        cluster.open()
        engine = await rig.engine()
        assert await engine.keep_tenants([physics(1)]) == {}
        policy = POLICIES.path("commonage-physics", "commonage-default-deny")
        assert await cluster.find(policy)

        await rig.stop_agent()
        with pytest.raises(EngineFailure):
            await engine.keep_tenants([physics(1)])
        await cluster.delete(policy)
        await rig.start_agent()  # without a link

        async def is_there() -> bool:
            return await cluster.find(policy) is not None

        await rig.until(is_there, "the site has made the policy again")
        await rig.close()
        await cluster.close()


@pytest.mark.parametrize("tells", ["its own", "of others"])
async def test_a_site_speaks_of_the_tenants_that_it_was_asked_for(tmp_path: Path, tells: str) -> None:
    async with rig_on_double(tmp_path) as local:
        local.settings = replace(local.settings, namespaces="kept")
        rig = KubernetesAtSite(local, tmp_path)
        engine = await rig.engine()
        assert rig.agent is not None
        why, tenant = WaitingForNamespace(namespace="x"), "physics" if tells == "its own" else "astronomy"

        async def keep(_tenants: Sequence[Tenant]) -> Mapping[str, Reason]:
            return {tenant: why}

        rig.agent._engine.keep_tenants = keep  # type: ignore[method-assign]
        assert await engine.keep_tenants([physics(1)]) == ({"physics": why} if tells == "its own" else {})
        await rig.close()


async def test_a_site_agent_of_an_older_release_is_not_asked(tmp_path: Path) -> None:
    async with rig_on_double(tmp_path) as local:
        rig = KubernetesAtSite(local, tmp_path)
        engine = await rig.engine()
        assert engine._report is not None
        engine._report = replace(engine._report, keeps_tenants=False)
        assert await engine.keep_tenants([physics(1)]) == {}
        await rig.close()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[KubernetesAtSite]:
    async with rig_on_double(tmp_path) as local:
        rig = KubernetesAtSite(local, tmp_path)
        yield rig
        await rig.close()


class TestKubernetesOnDoubleAtSite(EngineContract, PlatformContract):
    """All is inherited."""
