"""The engine contract on the Kubernetes engine, over the double of a cluster; `make test-kube` has it on a real one.

Doubles that are broken on purpose must be found out: a double that the contract does not look at proves nothing.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path

import pytest
from tests.kubernetes.rig import IMAGE, KubernetesRig

from commonage.domain.errors import CommonageError
from commonage.engines.kubernetes.manifest import Manifest
from commonage.testing.engine_contract import EngineContract
from commonage.testing.exec_contract import ExecContract
from commonage.testing.fakes.kubernetes.cluster import FakeCluster
from commonage.testing.fakes.kubernetes.kubelet import Kubelet, PodRun


@asynccontextmanager
async def rig_on_double(
    folder: Path, kubelet: type[Kubelet] = Kubelet, **settings: object
) -> AsyncIterator[KubernetesRig]:
    cluster = FakeCluster(folder / "cluster", nodes=["node-1"], images=[IMAGE], kubelet=kubelet)
    async with cluster:
        rig = KubernetesRig(folder / "data", "commonage", "node-1", kubeconfig=cluster.kubeconfig, **settings)
        try:
            yield rig
        finally:
            await rig.end_all(forget=True)


class TestKubernetesOnDouble(EngineContract, ExecContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[KubernetesRig]:
        async with rig_on_double(tmp_path) as rig:
            yield rig


class _KillsAtOnceRun(PodRun):
    def stop(self, grace_s: float) -> None:
        for container in self.containers:
            container.signal(signal.SIGKILL)
        super().stop(grace_s)


class KillsAtOnce(Kubelet):
    run_type = _KillsAtOnceRun


class LosesLastLine(Kubelet):
    async def log(self, pod: Manifest, name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        held = None
        async for line in super().log(pod, name, query):
            if held is not None:
                yield held
            held = line


class Changes(Kubelet):
    """Tells another status than the true one."""

    def tell(self, pod: Manifest, status: Manifest, *, is_over: bool) -> None:
        changed = deepcopy(status)
        self.change(changed, changed["containerStatuses"][0]["state"].get("terminated") or {})
        super().tell(pod, changed, is_over=is_over)

    def change(self, status: Manifest, end: Manifest) -> None:
        raise NotImplementedError


class LosesExitCodes(Changes):
    def change(self, status: Manifest, end: Manifest) -> None:
        end["exitCode"] = 0


class DoesNotSeeOom(Changes):
    def change(self, status: Manifest, end: Manifest) -> None:
        end["reason"] = "Error"


class GivesOneAddressToAll(Changes):
    def change(self, status: Manifest, end: Manifest) -> None:
        status["podIP"] = "127.0.0.1"


BROKEN = {
    KillsAtOnce: "test_program_may_end_itself_within_the_grace_period",
    LosesLastLine: "test_logs_are_read_whole_from_an_offset_and_from_the_end",
    LosesExitCodes: "test_missing_command_ends_with_127",
    DoesNotSeeOom: "test_oom_is_distinguished_from_failure",
    GivesOneAddressToAll: "test_ports_are_assigned_and_reported",
}


@pytest.mark.parametrize("kubelet", BROKEN, ids=lambda kubelet: kubelet.__name__)
def test_a_broken_double_is_found_out(kubelet: type[Kubelet], tmp_path: Path) -> None:
    """In a loop of its own, as a failing test may leave tasks. That the sound one passes is tested above."""

    async def run() -> None:
        async with rig_on_double(tmp_path, kubelet) as rig:
            await getattr(EngineContract(), BROKEN[kubelet])(rig)

    with pytest.raises((AssertionError, CommonageError, LookupError)):
        asyncio.run(run())
