"""The engine contract on the Swarm engine, over a real Swarm of a manager and three workers."""

import pytest
from tests.contract.engines.gang_contract import GangContract

from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig

pytestmark = pytest.mark.needs("docker")


class TestSwarm(EngineContract, GangContract):
    nodes = ("worker1", "worker2")
    host_file = "cm-{} slots=1"

    async def test_its_loops_are_named(self, rig: EngineRig) -> None:
        names = [iterations.name for iterations in (await rig.engine()).loops()]
        assert names == [
            "swarm: watch tasks",
            "swarm: remove services",
            "swarm: answer paused nodes",
            "swarm: limit logs",
            "swarm: clean up",
        ]

    async def test_has_all_capabilities_whose_lack_the_contract_passes_over(self, rig: EngineRig) -> None:
        can = (await rig.engine()).capabilities()
        assert (can.limits_memory, can.limits_cpu, can.mounts, can.ports, can.isolates_users) == (True,) * 5
