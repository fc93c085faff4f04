"""The engine contract on the Kubernetes engine, over the cluster that KUBECONFIG names."""

from tests.kubernetes.rig import KeepsFirstGracePeriod

from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig
from commonage.testing.exec_contract import ExecContract


class TestKubernetes(KeepsFirstGracePeriod, EngineContract, ExecContract):
    async def test_its_loops_are_named(self, rig: EngineRig) -> None:
        names = [iterations.name for iterations in (await rig.engine()).loops()]
        assert names == [
            "kubernetes: watch pods",
            "kubernetes: watch nodes",
            "kubernetes: read GPUs",
            "kubernetes: end file Pods",
            "kubernetes: limit logs",
            "kubernetes: clean up",
        ]

    async def test_has_all_capabilities_whose_lack_the_contract_passes_over(self, rig: EngineRig) -> None:
        can = (await rig.engine()).capabilities()
        assert (can.limits_memory, can.limits_cpu, can.mounts, can.ports, can.isolates_users) == (True,) * 5
