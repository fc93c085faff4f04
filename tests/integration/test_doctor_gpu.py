"""`commonage doctor gpu` on a node of fakes: what holds is said to hold, and what a driver does not honour is found.

Everything but driver and MPS daemon is real: the probe's processes, their control groups, the escapes.
"""

import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.cuda.harness import LIBRARY, FakeNode
from tests.fakes.nvml.harness import build_library
from tests.fakes.vgpu.harness import build_idle_one, build_interposer

from commonage.gpu.isolation.mps_daemon import PROGRAM, MpsDaemon

pytestmark = pytest.mark.needs("gcc", "cgroups", "root")
MPS = Path(__file__).parents[1] / "fakes" / "mps" / PROGRAM
NODE = ("driver 615.10", "nvml 13.615.10", "cuda 13040")
# Which server gives out a GPU is known on the whole node, so no two runs of the tests have the same GPUs.
UUIDS = [f"GPU-{secrets.token_hex(4)}-0000-0000-0000-{secrets.token_hex(6)}" for _ in range(2)]
A100 = (
    "device",
    f"uuid {UUIDS[0]}",
    "name NVIDIA A100",
    "memory 8192 192 0",
    "capability 8 0",
    "compute_mode 0",
    "mig 0",
)
T4 = ("device", f"uuid {UUIDS[1]}", "name Tesla T4", "memory 6144 144 0", "capability 7 5")
SPLIT = (
    *A100[:4],
    "capability 8 0",
    "mig 1",
    "instances 7",
    "instance MIG-cccccccc-0000-0000-0000-00000000000c 1 0 1900 1 1g.2gb",
    "instance MIG-dddddddd-0000-0000-0000-00000000000d 2 0 1900 1 1g.2gb",
)
# The control groups of version 2 stand elsewhere where those of version 1 are in use, too.
PROGRAM_OF_TEST = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
from commonage.domain.nodes import Isolation
from commonage.engines.process.groups.cgroups import Cgroups, Hierarchy
from commonage.gpu.isolation.cooperative import Cooperative
from commonage.gpu.isolation.driver_limit import DriverLimit
from commonage.gpu.isolation.mig import Mig
from commonage.gpu.isolation.mps import Mps
from commonage.gpu.isolation.preload import Preload
from commonage.server.commands.doctor import exit_code
from commonage.server.doctor.gpu_doctor import find_gpus, try_all
from commonage.server.doctor.gpu_probes import Places

root = Path("/sys/fs/cgroup")
root = root if (root / "cgroup.controllers").exists() else root / "unified"
groups = root / f"commonage-test-{os.getpid()}"
groups.mkdir()
place, interposer = Path(sys.argv[2]), Path(sys.argv[4]) if sys.argv[4:] else None
levels = [DriverLimit(root), Mig(), Mps(place), Preload(place / "preload", interposer), Cooperative()]
places = Places(Cgroups([Hierarchy(groups, 2, frozenset())], 100))
trials = list(try_all(find_gpus("nvml"), [Isolation(sys.argv[3])], places=places, levels=levels, library=sys.argv[1]))
print(json.dumps({"trials": [asdict(one) for one in trials], "code": exit_code(trials), "left": groups.exists()}))
"""


class Result:
    def __init__(self, said: Mapping[str, Any]) -> None:
        self.said = said
        self.code = said["code"]
        self.trials = said["trials"]

    def held(self, check: str, index: int = 0) -> bool | None:
        (found,) = [one["held"] for one in self.trials if (one["index"], one["check"]) == (index, check)]
        return found

    @property
    def broken(self) -> list[str]:
        return [one["check"] for one in self.trials if one["promised"] and one["held"] is False]


@pytest.fixture(scope="module", autouse=True)
def claims() -> Iterator[None]:
    yield
    for uuid, place in itertools.product(UUIDS, ("/run/lock", "/tmp")):
        Path(place, f"commonage-gpu-{uuid}.lock").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(tmp_path: Path, nvml: Path) -> Iterator[FakeNode]:
    node = FakeNode(tmp_path / "node", nvml)
    node.driver.says(*NODE, *A100)
    (tmp_path / "bin").mkdir()
    shutil.copy(MPS, tmp_path / "bin")
    yield node
    assert not node.limits(), "no limit is left"
    assert [line.split()[-1] for line in node.modes()][-1:] in ([], ["0"]), "the compute mode is as before"


def command(node: FakeNode, level: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", PROGRAM_OF_TEST, str(node.libraries / LIBRARY), str(folder), level]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as the sockets of MPS need it."""
    with tempfile.TemporaryDirectory(prefix="dg-") as path:
        yield Path(path)


def tried(node: FakeNode, level: str, *more: str) -> Result:
    with tempfile.TemporaryDirectory(prefix="dg-") as folder:
        ended = subprocess.run(
            [*command(node, level, Path(folder)), *more],
            env=node.variables(node.folder.parent / "bin"),
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert not said["left"], "no control group is left"
    return Result(said)


BEYOND = "take memory beyond the share"
NEIGHBOUR = "disturb the neighbour meanwhile"
HIDDEN = "see another GPU"
EMPTY = "take memory beyond the share with an empty environment"
EMPTY_HIDDEN = "see another GPU with an empty environment"
GROUP = "take memory beyond the share from another control group"


def test_limits_of_the_driver_hold_also_without_variables_but_not_outside_the_group(node: FakeNode) -> None:
    node.driver.says(*NODE, *A100, *T4)
    result = tried(node, "driver-limit")
    for index in (0, 1):
        assert [result.held(check, index) for check in (BEYOND, NEIGHBOUR, HIDDEN, EMPTY)] == [True] * 4
        # Workloads of this engine run as the server does: they can leave their group, and open any GPU.
        assert [result.held(check, index) for check in (GROUP, EMPTY_HIDDEN)] == [False] * 2
    assert result.code == 0


def test_a_driver_that_sets_limits_and_does_not_honour_them_is_found(node: FakeNode) -> None:
    node.stops("ignores limits")
    result = tried(node, "driver-limit")
    assert set(result.broken) == {BEYOND, EMPTY}
    assert result.code == 1


def test_mps_holds_and_in_exclusive_mode_nobody_leaves_it(node: FakeNode) -> None:
    node.driver.says(*NODE, *A100, *T4)
    result = tried(node, "mps")
    assert [result.held(check) for check in (BEYOND, NEIGHBOUR, HIDDEN, EMPTY)] == [True] * 4
    # The second GPU cannot be switched to exclusive mode here: what clears its variables leaves MPS, as is said.
    assert [result.held(check, 1) for check in (BEYOND, EMPTY)] == [True, False]
    assert not result.broken
    assert result.code == 0
    assert [line.split()[-1] for line in node.modes()] == ["3", "0"]


@pytest.mark.parametrize(
    ("ignored", "found", "devices"),
    [("mps", BEYOND, A100), ("visible", HIDDEN, (*A100, *T4)), ("exclusive", EMPTY, A100)],
)
def test_what_mps_does_not_hold_is_found(node: FakeNode, ignored: str, found: str, devices: tuple[str, ...]) -> None:
    node.driver.says(*NODE, *devices)
    node.stops(f"ignores {ignored}")
    result = tried(node, "mps")
    assert found in result.broken
    assert result.code == 1


def test_an_interposer_holds_until_the_environment_is_empty(node: FakeNode) -> None:
    node.driver.says(*NODE, *A100, *T4)
    result = tried(node, "preload", str(build_interposer(node.folder)))
    for index in (0, 1):
        assert [result.held(check, index) for check in (BEYOND, NEIGHBOUR, HIDDEN)] == [True] * 3
        assert result.held(EMPTY, index) is False, "it is soft, and that is not promised"
    assert result.code == 0


def test_an_interposer_that_limits_nothing_is_found(node: FakeNode) -> None:
    result = tried(node, "preload", str(build_idle_one(node.folder)))
    assert result.broken == [BEYOND]
    assert result.code == 1


def test_a_level_without_an_interposer_is_not_tried(node: FakeNode) -> None:
    result = tried(node, "preload")
    assert [one["held"] for one in result.trials] == [None]
    assert "set gpu_preload" in result.trials[0]["found"]
    assert result.code == 2


def test_cooperative_promises_next_to_nothing_and_holds_no_more(node: FakeNode) -> None:
    result = tried(node, "cooperative")
    assert [result.held(check) for check in (BEYOND, HIDDEN, EMPTY)] == [False, None, False]  # there is one GPU only
    assert result.code == 0


def test_an_instance_is_tried_as_it_is(node: FakeNode) -> None:
    node.driver.says(*NODE, *SPLIT)
    result = tried(node, "mig")
    instance = result.trials[0]["index"]
    assert result.trials[0]["label"] == "0:0"
    assert [result.held(check, instance) for check in (BEYOND, HIDDEN, NEIGHBOUR)] == [True, True, None]
    assert result.code == 0


def test_a_device_that_breaks_under_the_neighbour_is_found(node: FakeNode) -> None:
    node.stops("breaks 700")
    assert NEIGHBOUR in tried(node, "driver-limit").broken


def test_a_device_in_use_is_not_tried(node: FakeNode) -> None:
    node.driver.says(*NODE, *(line.replace("192 0", "192 7000") for line in A100))
    result = tried(node, "driver-limit")
    assert [one["held"] for one in result.trials] == [None]
    assert "are free" in result.trials[0]["found"]
    assert result.code == 2


def test_a_share_that_cannot_be_applied_is_found(node: FakeNode) -> None:
    node.driver.says("fail nvmlDeviceSetMemoryLimits_v1 4", *NODE, *A100)
    result = tried(node, "driver-limit")
    assert result.code == 1
    assert "Insufficient Permissions" in result.trials[0]["found"]


def test_the_command_prints_it(node: FakeNode, tmp_path: Path, commonage_command: str) -> None:
    ended = subprocess.run(
        [commonage_command, "doctor", "gpu", "--level", "cooperative", "--level", "mig"],
        env={**node.variables(), "COMMONAGE_GPUS": "nvml"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "GPU 0: NVIDIA A100, cooperative" in ended.stdout
    assert f"not promised  {BEYOND}" in ended.stdout
    assert f"not tested    {HIDDEN}: there is no other GPU" in ended.stdout


def test_the_command_tries_the_interposer_of_the_settings(
    node: FakeNode, tmp_path: Path, commonage_command: str
) -> None:
    ended = subprocess.run(
        [commonage_command, "doctor", "gpu", "--level", "preload"],
        env={
            **node.variables(),
            "COMMONAGE_GPUS": "nvml",
            "COMMONAGE_GPU_PRELOAD": str(build_interposer(node.folder)),
            "TMPDIR": str(tmp_path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "GPU 0: NVIDIA A100, preload" in ended.stdout
    assert f"held          {BEYOND}" in ended.stdout
    assert f"not promised  {EMPTY}" in ended.stdout
    assert not list(tmp_path.glob("commonage-doctor-*")), "nothing is left"


def test_without_a_device_the_command_says_so(tmp_path: Path, commonage_command: str) -> None:
    ended = subprocess.run(
        [commonage_command, "doctor", "gpu"],
        env={**os.environ, "COMMONAGE_GPUS": "simulated"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "nothing can be tested" in ended.stderr


def has_started(folder: Path) -> bool:
    return any(folder.glob("*/pipe"))


def runs(folder: Path) -> bool:
    return any(folder.glob("*/pipe/*.pid"))


def daemons(folder: Path) -> list[int]:
    """The processes of MPS with their files there."""
    return [pid for place in folder.glob("*") for pid in MpsDaemon.in_folder(place).processes()]


def until(process: subprocess.Popen[bytes], has_come: Callable[[], object]) -> None:
    while not has_come():
        assert process.poll() is None, "it ended before the moment came"
        time.sleep(0.002)


@pytest.fixture
def begun(node: FakeNode) -> Iterator[Callable[[list[str], Path], subprocess.Popen[bytes]]]:
    """Begins a command with files in a folder; none of them outlives the test."""
    processes = []

    def begin(arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
        variables = node.variables(node.folder.parent / "bin") | {"COMMONAGE_GPUS": "nvml", "TMPDIR": str(folder)}
        processes.append(subprocess.Popen(arguments, env=variables, cwd=folder, stdout=subprocess.DEVNULL))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()


Begin = Callable[[list[str], Path], subprocess.Popen[bytes]]


@pytest.mark.parametrize("moment", [has_started, runs, None], ids=["daemon starting", "daemon running", "mode set"])
def test_one_that_is_ended_in_the_middle_leaves_no_daemon_and_no_mode(
    node: FakeNode, folder: Path, begun: Begin, moment: Callable[[Path], bool] | None
) -> None:
    process = begun(command(node, "mps", folder), folder)
    until(process, lambda: moment(folder) if moment else node.modes())
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    assert not daemons(folder)
    assert not has_started(folder)


@pytest.mark.parametrize("slow", ["--serve", "-d"])
def test_one_that_is_ended_does_not_wait_for_a_daemon_that_does_not_come(
    node: FakeNode, folder: Path, begun: Begin, slow: str
) -> None:
    program = node.folder.parent / "bin" / PROGRAM
    hangs = f'case $1 in {slow}) echo >"$CUDA_MPS_LOG_DIRECTORY/hangs"; while :; do sleep 1; done ;; esac'
    program.write_text(program.read_text().replace("\n", f"\n{hangs}\n", 1))
    process = begun(command(node, "mps", folder), folder)
    until(process, lambda: any(folder.glob("*/log/hangs")))
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    assert not daemons(folder)
    assert not has_started(folder)


def test_what_a_killed_one_leaves_is_removed_by_the_next(
    node: FakeNode, folder: Path, begun: Begin, commonage_command: str
) -> None:
    arguments = [commonage_command, "doctor", "gpu", "--level", "mps"]
    killed = begun(arguments, folder)
    until(killed, node.modes)
    killed.kill()
    killed.wait()
    [left] = folder.glob("commonage-doctor-*")
    assert daemons(left / "mps")
    assert begun(arguments, folder).wait() == 0
    assert not daemons(left / "mps")
    assert not list(folder.glob("commonage-doctor-*"))
