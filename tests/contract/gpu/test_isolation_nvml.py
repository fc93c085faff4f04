"""Levels of isolation on the fake NVML library and real control groups: what is chosen, applied, left by a crash."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.cuda.harness import FakeNode
from tests.fakes.nvml.harness import build_library

from commonage.gpu.isolation.mps_daemon import PROGRAM

pytestmark = pytest.mark.needs("gcc", "cgroups", "root")
MPS = Path(__file__).parents[2] / "fakes" / "mps" / PROGRAM
UUID = "GPU-aaaaaaaa-0000-0000-0000-00000000000a"
A100 = (
    "device", f"uuid {UUID}", "name NVIDIA A100", "memory 8192 192 0", "capability 8 0", "compute_mode 0", "mig 0",
)  # fmt: skip
MIB = 1024 * 1024
# A process as the server is: it does what its arguments say, one after the other, and prints what is there then.
SERVER = """
import json, os, sys
from pathlib import Path
from commonage.gpu.isolation.gpu_locks import GpuLocks
from commonage.gpu.isolation.contexts import Contexts
from commonage.gpu.isolation.cooperative import Cooperative
from commonage.gpu.isolation.devices import IsolatedDevices, Sharing
from commonage.gpu.isolation.driver_limit import DriverLimit
from commonage.gpu.isolation.mig import Mig
from commonage.gpu.isolation.mps import Mps
from commonage.gpu.nvml.devices import NvmlDevices
from commonage.ports.devices import ShareAssignment, ShareNotEnforced
from commonage.testing.devices_contract import share_of

data, root, group = (Path(word) for word in sys.argv[1:4])
levels = [DriverLimit(root), Mig(), Mps(data / "mps"), Cooperative()]
claims, contexts = GpuLocks("test", data), Contexts(data / "contexts.json", lambda _: "")
devices = IsolatedDevices(NvmlDevices(), Sharing(data), levels=levels, claims=claims, contexts=contexts)
said = {}
for word in sys.argv[4:]:
    device = devices.inventory()[0]
    if word == "enforce":
        try:
            said["variables"] = dict(devices.enforce(ShareAssignment("a-1", (share_of(device, 2048),), (str(group),))))
        except ShareNotEnforced as error:
            said["refused"] = error.message
    elif word == "release":
        devices.release("a-1")
    elif word == "settle":
        devices.settle([])
unavailable = {level: why.code for level, why in device.unavailable}
said |= {"isolation": device.isolation, "unavailable": unavailable, "enforced": list(devices.enforced())}
print(json.dumps(said))
sys.stdout.flush()
os._exit(9)  # as kill -9 would end it
"""


class World:
    def __init__(self, folder: Path, root: Path) -> None:
        (folder / "nvml").mkdir()
        (folder / "bin").mkdir()
        shutil.copy(MPS, folder / "bin")
        self.node = FakeNode(folder / "node", build_library(folder / "nvml"))
        self.programs = folder / "bin"
        self.data = Path("/tmp") / f"in-{os.getpid()}"  # short, as the sockets of MPS need it
        self.root, self.group = root, root / f"commonage-test-{os.getpid()}"
        self.group.mkdir()
        self.data.mkdir()

    def server(self, *does: str) -> dict[str, Any]:
        arguments = [str(self.data), str(self.root), str(self.group), *does]
        ended = subprocess.run(
            [sys.executable, "-c", SERVER, *arguments], env=self.node.variables(self.programs),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 9, ended.stderr
        return {**json.loads(ended.stdout), "log": ended.stderr}

    @property
    def daemon(self) -> Path:
        return self.data / "mps" / "aaaaaaaa" / "pipe" / f"{PROGRAM}.pid"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    root = Path("/sys/fs/cgroup")
    root = root if (root / "cgroup.controllers").exists() else root / "unified"
    world = World(tmp_path, root)
    yield world
    world.server("settle")
    world.group.rmdir()
    shutil.rmtree(world.data)


def test_a_limit_of_the_driver_is_on_the_group_and_is_lifted(world: World) -> None:
    world.node.driver.says("driver 615.10", "nvml 13", "cuda 13040", *A100)
    said = world.server("enforce")
    assert said["isolation"] == "driver-limit"
    assert world.node.limits() == [f"{UUID} {2048 * MIB} {2048 * MIB} {world.group}"]
    assert world.server("enforce")["enforced"] == ["a-1"]
    assert len(world.node.limits()) == 1
    assert world.server("release")["enforced"] == []
    assert not world.node.limits()


def test_what_a_crash_left_is_lifted_by_the_next_server(world: World) -> None:
    world.node.driver.says("driver 615.10", "nvml 13", "cuda 13040", *A100)
    world.server("enforce")
    assert world.server("settle")["enforced"] == []
    assert not world.node.limits()


def test_a_limit_that_is_refused_leaves_nothing(world: World) -> None:
    world.node.driver.says("fail nvmlDeviceSetMemoryLimits_v1 4", "driver 615.10", "nvml 13", "cuda 13040", *A100)
    said = world.server("enforce")
    assert "Insufficient Permissions" in said["refused"]
    assert said["enforced"] == []


def test_an_older_driver_has_mps_with_exclusive_mode_while_it_is_needed(world: World) -> None:
    world.node.driver.says("driver 580.65", "nvml 13", "cuda 13000", *A100)
    said = world.server("enforce")
    assert said["isolation"] == "mps"
    assert said["unavailable"]["driver-limit"] == "DriverTooOld"
    assert said["variables"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"
    assert world.daemon.exists()
    assert world.node.modes() == [f"{UUID} 3"]
    world.server("settle")
    assert not world.daemon.exists()
    assert world.node.modes()[-1] == f"{UUID} 0"


def test_a_mode_that_could_not_be_changed_is_not_changed_back(world: World) -> None:
    world.node.driver.says("fail nvmlDeviceSetComputeMode 4", "driver 580.65", "nvml 13", "cuda 13000", *A100)
    assert world.server("enforce")["isolation"] == "mps"
    said = world.server("settle")
    assert not world.daemon.exists()
    assert "stays in exclusive-process mode" not in said["log"]


def test_a_library_without_the_call_is_the_reason(world: World) -> None:
    world.node.driver.says("fail nvmlDeviceGetMemoryLimits_v1 13", "driver 615.10", "nvml 13", "cuda 13040", *A100)
    said = world.server("look")
    assert said["isolation"] == "mps"
    assert said["unavailable"]["driver-limit"] == "DriverRefusesLimits"
