"""What a container is given, prepared while a stop may come."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engines.containers.program.test_program import request

from commonage.domain.nodes import Allocation, Share
from commonage.domain.statuses import Phase, Status
from commonage.engines.containers.attempt_backend import Run
from commonage.engines.containers.daemon.networks import Network
from commonage.engines.containers.files.prepare import ContainerDefaults
from commonage.engines.docker.daemon import Daemon
from commonage.engines.docker.launcher import Launcher
from commonage.engines.rundir.runs import Runs
from commonage.engines.settings import DockerSettings
from commonage.files.safe_path import SafePath
from commonage.ports.devices import ShareAssignment

pytestmark = pytest.mark.anyio
GPU = Share("GPU-a", 0, "A100", 8192, 500, False, 40960)


class FakeDevices:
    """`stopped` is an attempt that is stopped, and has its shares released, while they are about to be held."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.stopped: Run | None = None

    def enforce(self, hold: ShareAssignment) -> Mapping[str, str]:
        if self.stopped is not None:
            self.stopped.control_folder.forbid_start()
            self.release(hold.attempt_id)
        self.held.add(hold.attempt_id)
        return {}

    def release(self, attempt_id: str) -> None:
        self.held.discard(attempt_id)


@pytest.mark.parametrize(("stopped", "held"), [(False, {"w-1"}), (True, set())])
async def test_stop_during_preparation_releases_share(tmp_path: Path, stopped: bool, held: set[str]) -> None:
    runs = Runs(tmp_path / "runs")
    runs.open()
    stop = request(allocation=Allocation("w-1", "is_local", 1000, 256, (GPU,), 0.0))
    run = Run(stop, runs.create(stop, None), Status("w-1", Phase.STARTING, 0.0))
    nobody: Any = None
    devices: Any = FakeDevices()
    devices.stopped = run if stopped else None
    defaults = ContainerDefaults("0123456789abcdef", SafePath(tmp_path) / "workspaces", {}, 1, is_local=True)
    settings = DockerSettings()
    daemon = Daemon(nobody, settings, nobody)
    launcher = Launcher(defaults, tmp_path / "injected", settings, nobody, daemon, nobody, devices, nobody, nobody)
    launcher._prepare(run, Network("net-id", "commonage-net", "10.0.0.1"), volume_quota=False)
    assert devices.held == held
