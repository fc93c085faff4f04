"""The rig of the engine contract for a cluster: its Pods run an image that every node has."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.rigs import BROKEN_IMAGE, RealRig, command_of
from tests.contract.harness.processes import processes_of

from commonage.domain.images import Environment
from commonage.domain.statuses import Phase, StartRequest
from commonage.engines.kubernetes.engine import KubernetesEngine
from commonage.engines.kubernetes.gpus.mode import GpuMode
from commonage.engines.kubernetes.gpus.modes import MODES_IN_USE
from commonage.engines.settings import KubernetesSettings
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import StartRequestFactory

IMAGE = os.environ.get("COMMONAGE_TEST_IMAGE", "localhost/commonage-lab/base:1")
"""Needs a POSIX shell with setsid, sleep and stty."""
FILES_IMAGE = os.environ.get("COMMONAGE_TEST_FILES_IMAGE", "")
"""Needs a POSIX shell and this program (`python3 -m commonage.storage.file_pod`). Empty: file Pods are not tested."""


class SmallRequests(StartRequestFactory):
    """Start requests of which thirty fit on a small node at once."""

    def __call__(self, behaviour: Behaviour, *, memory_mib: int = 64, **changes: object) -> StartRequest:
        request = super().__call__(behaviour, memory_mib=memory_mib, **changes)
        return replace(request, allocation=replace(request.allocation, cpus_milli=10))


class KubernetesRig(RealRig[KubernetesEngine]):
    on_this_node = False
    tells_pids = False

    def __init__(
        self,
        data: Path,
        namespace: str,
        node: str,
        *,
        gpu_modes: Sequence[GpuMode] = MODES_IN_USE,
        **settings: object,
    ) -> None:
        self.data, self.gpu_modes = data, gpu_modes
        fields = {"namespace": namespace, "room_timeout_s": 20.0, **settings}
        self.settings = KubernetesSettings(**fields)  # type: ignore[arg-type]  # its fields
        environment = Environment("here", "Of the cluster", image=IMAGE)
        self.start_request = SmallRequests(environment, node, command_of, time.time)
        self.broken_environment = BROKEN_IMAGE

    def make(self) -> KubernetesEngine:
        return KubernetesEngine("local", self.data, settings=self.settings, gpu_modes=self.gpu_modes)

    async def processes(self, attempt: str) -> int:
        """Those of this machine, if the cluster's nodes are on it; else whether its container runs."""
        if found := len(processes_of(attempt)):
            return found
        status = await self.status(attempt)
        return int(status is not None and status.phase is Phase.RUNNING)


class KeepsFirstGracePeriod:
    """For contracts on a real cluster: skips a test that no kubelet passes (docs/operate/kubernetes.md)."""

    async def test_second_stop_may_shorten_the_grace_period(self) -> None:
        pytest.skip("the kubelet keeps to the grace period of the first deletion (kubernetes/kubernetes#83916)")
