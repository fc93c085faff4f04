"""`commonage doctor gpu --measure` and the training of the benchmark `gpu`, on a node of fakes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.cuda.harness import LIBRARY, FakeNode
from tests.fakes.nvml.harness import build_library

from commonage.gpu.isolation.mps_daemon import PROGRAM

pytestmark = pytest.mark.needs("gcc", "cgroups", "root")
MPS = Path(__file__).parents[1] / "fakes" / "mps" / PROGRAM
TRAINING = Path(__file__).parents[2] / "benchmarks" / "gpu" / "training.py"
A100 = (
    "driver 580.1", "nvml 13.580.1", "cuda 13000", "device", "uuid GPU-aaaaaaaa-0000-0000-0000-00000000000a",
    "name NVIDIA A100", "memory 5192 192 0", "capability 8 0", "compute_mode 0", "mig 0",
)  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    (tmp_path / "nvml").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(MPS, tmp_path / "bin")
    node = FakeNode(tmp_path / "node", build_library(tmp_path / "nvml"))
    node.driver.says(*A100)
    return node


def test_shares_together_and_a_greedy_neighbour(node: FakeNode, tmp_path: Path, commonage_command: str) -> None:
    ended = subprocess.run(
        [commonage_command, "doctor", "gpu", "--measure", "--seconds", "0.3", "--json"],
        env=node.variables(tmp_path / "bin"), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (device,) = json.loads(ended.stdout)
    assert device["alone"] > 0
    # An eighth of 5000 MiB is smaller than the smallest measured share.
    assert [(one["level"], one["count"]) for one in device["together"]] == [
        ("mps", 2), ("mps", 4), ("cooperative", 2), ("cooperative", 4),
    ]  # fmt: skip
    assert all(one["slowest"] > 0 and not one["error"] for one in device["together"])
    got = {one["level"]: one["got_mib"] <= one["share_mib"] for one in device["beside"]}
    assert got == {"mps": True, "cooperative": False}
    assert all(one["meanwhile"] > 0 and not one["error"] for one in device["beside"])
    assert [one["level"] for one in device["left_out"]] == ["driver-limit", "mig", "preload"]
    assert [line.split()[-1] for line in node.modes()][-1] == "0", "the compute mode is as before"


@pytest.mark.parametrize(("library", "error"), [(LIBRARY, ""), ("no-such-library", "cannot be loaded")])
def test_training_without_a_framework(node: FakeNode, library: str, error: str) -> None:
    (node.folder / "torch.py").write_text("raise ImportError('not here')")
    ended = subprocess.run(
        [sys.executable, str(TRAINING), "--seconds", "0.2", "--library", library],
        env={**node.variables(), "PYTHONPATH": str(node.folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    result = json.loads(ended.stdout)
    assert ended.returncode == (1 if error else 0)
    assert error in result["error"]
    assert bool(result["steps"]) is not bool(error)


def test_without_a_device_nothing_is_measured(tmp_path: Path, commonage_command: str) -> None:
    ended = subprocess.run(
        [commonage_command, "doctor", "gpu", "--measure"],
        env={**os.environ, "COMMONAGE_GPUS": "simulated"}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "nothing is measured" in ended.stderr


def test_where_no_workload_can_run_nothing_is_measured(node: FakeNode, tmp_path: Path, commonage_command: str) -> None:
    variables = node.variables(tmp_path / "bin")
    variables["LD_LIBRARY_PATH"] = str(tmp_path / "nvml")  # NVML is found, CUDA is not
    ended = subprocess.run(
        [commonage_command, "doctor", "gpu", "--measure", "--seconds", "0.2", "--level", "cooperative"],
        env=variables, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "one workload alone: 0.0 kernels a second: " in ended.stdout


def test_seconds_without_measure_is_a_usage_error(tmp_path: Path, commonage_command: str) -> None:
    ended = subprocess.run(
        [commonage_command, "doctor", "gpu", "--seconds", "3"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "Add --measure, or omit --seconds." in ended.stderr
