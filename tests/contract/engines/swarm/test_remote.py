"""The engine contract through a site link: a site agent drives the Swarm engine, over a real Swarm."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.engines.remote.rig import RemoteRealRig
from tests.contract.engines.rigs import swarm_rig
from tests.contract.harness.local_agents import LocalAgents
from tests.contract.harness.swarm import Swarm

from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig

pytestmark = pytest.mark.needs("docker")


@pytest.fixture
async def rig(tmp_path: Path, swarm: Swarm) -> AsyncIterator[EngineRig]:
    async with swarm_rig(tmp_path / "data", swarm, LocalAgents(swarm)) as local:
        rig = RemoteRealRig(local, tmp_path)
        yield rig
        await rig.close()


class TestSwarmEngineAtSite(EngineContract):
    async def test_has_all_capabilities_whose_lack_the_contract_passes_over(self, rig: EngineRig) -> None:
        can = (await rig.engine()).capabilities()
        assert (can.limits_memory, can.limits_cpu, can.mounts, can.ports, can.isolates_users) == (True,) * 5
