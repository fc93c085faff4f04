"""Usage reports in the terminal: a line at the end of `run`, a hint before it, and `profile`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.integration.api_world import Api, SampledDevices, served

from commonage.cli import main
from commonage.domain.nodes import Allocation
from commonage.gpu.none import NoDevices
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour

UUID = "GPU-gpu-1-0"
Run = Callable[..., Result]


class Device(NoDevices):
    """One GPU, of which every attempt that holds a part uses 3 GiB."""

    held: Sequence[Allocation] = ()

    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        self.held = allocations

    def measure(self) -> Sequence[DeviceSample]:
        listed = tuple(
            ProcessMemory(None, 3000, attempt_id=allocation.attempt_id, utilisation=0.5)
            for allocation in self.held
            if allocation.shares
        )
        unattributed_processes = (ProcessMemory(None, 800),)
        return [DeviceSample(UUID, 3000 * len(listed), 0.5, power_w=200.0, processes=listed + unattributed_processes)]


def prepare(api: Api) -> None:
    """A real GPU, and jobs that run for a second."""
    device = factories.device(uuid=UUID, simulated=False)
    api.engine.add_node(factories.node("gpu-1", [device]).report)
    api.engine.default = Behaviour(lasts_s=1.0, holds_mib=500, prints=("hello",))
    api.engine.behave(Behaviour(lasts_s=0.0), command=("quick",))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(
        tmp_path_factory.mktemp("api"), devices=SampledDevices(Device(), sample_every_s=0.1), prepare=prepare
    ) as address:
        yield address


@pytest.fixture
def commonage(url: str, tmp_path: Path) -> Run:
    def run(*arguments: str) -> Result:
        environment = {"XDG_CONFIG_HOME": str(tmp_path), "COMMONAGE_URL": url, "COMMONAGE_TOKEN": "ann"}
        return CliRunner().invoke(main, arguments, env=environment | {"NO_COLOR": "1"}, prog_name="commonage")

    return run


def test_run_prints_usage_report_and_later_a_hint(commonage: Run) -> None:
    ask = ("run", "--no-files", "--gpus", "12GiB", "--", "train")
    first = commonage(*ask)
    assert first.exit_code == 0, first.stderr
    assert first.stdout == "hello\n"
    assert "requested 12 GiB of GPU memory, peak 3000 MiB, 3.5 GiB would be enough; " in first.stderr
    assert "will do" not in first.stderr
    for _ in range(10):  # the usage report is written a moment after the end
        again = commonage(*ask)
        if "will do" in again.stderr:
            break
    assert "last time it used at most 3000 MiB of VRAM: 3.5 GiB will do (--gpus 3.5GiB)" in again.stderr
    modest = commonage("run", "--no-files", "--gpus", "4GiB", "--", "train")
    assert "will do" not in modest.stderr, "that is not much more"
    shown = commonage("explain", first.stderr.split()[1])
    assert "It requested 12 GiB of GPU memory, peak 3000 MiB" in shown.stdout


def test_job_without_gpu_has_no_report_line(commonage: Run) -> None:
    done = commonage("run", "--no-files", "--", "count")
    assert "asked" not in done.stderr


def test_profile_prints_the_request(commonage: Run) -> None:
    done = commonage("profile", "--no-files", "--", "train")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("--gpus 3.5GiB --mem 768MiB --cpus ")
    assert "hello" in done.stderr
    assert "1 whole GPU" in done.stderr
    assert "VRAM: 3000 MiB at most" in done.stderr or "VRAM: 2.9 GiB at most" in done.stderr
    assert "simulated" not in done.stderr
    as_json = commonage("profile", "--json", "--no-files", "--cpus", "2", "--", "train")
    assert json.loads(as_json.stdout)["usage_report"]["cpus_milli"] == 2000


def test_profile_of_short_job_fails(commonage: Run) -> None:
    done = commonage("profile", "--no-files", "--", "quick")
    assert done.exit_code == 1
    assert "ended before the first measurement" in done.stderr


def test_node_ls_lists_unattributed_processes(commonage: Run) -> None:
    assert "gpu-1, GPU 0: a process uses 800 MiB of VRAM, and no workload started it" in commonage("node", "ls").stdout
