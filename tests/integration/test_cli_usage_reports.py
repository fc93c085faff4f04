"""Usage reports in the terminal: a line at the end of `run`, a hint before it, and `profile`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.integration.api_world import Api, SampledDevices, served
from tests.integration.command_line import Run, commonage_at

from commonage.domain.nodes import Allocation
from commonage.gpu.none import NoDevices
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour

UUID = "GPU-gpu-1-0"


class Device(NoDevices):
    """One GPU, of which every attempt that holds a part uses 3 GiB; `end` ends it after a few measurements."""

    def __init__(self) -> None:
        self.held: Sequence[Allocation] = ()
        self.end: Callable[[str], object] = lambda _: None
        self._measured: Counter[str] = Counter()

    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        self.held = allocations

    def measure(self) -> Sequence[DeviceSample]:
        listed = tuple(
            ProcessMemory(None, 3000, attempt_id=allocation.attempt_id, utilisation=0.5)
            for allocation in self.held
            if allocation.shares
        )
        for process in listed:
            self._measured[process.attempt_id] += 1
            if self._measured[process.attempt_id] == 5:
                self.end(process.attempt_id)
        unattributed_processes = (ProcessMemory(None, 800),)
        return [DeviceSample(UUID, 3000 * len(listed), 0.5, power_w=200.0, processes=listed + unattributed_processes)]


def prepare(api: Api, gpu: Device) -> None:
    """A real GPU, and jobs that run until it has measured them."""
    gpu.end = partial(asyncio.get_running_loop().call_soon_threadsafe, api.engine.end)
    device = factories.device(uuid=UUID, simulated=False)
    api.engine.add_node(factories.node("gpu-1", [device]).report)
    api.engine.default = Behaviour(lasts_s=None, holds_mib=500, prints=("hello",))
    for command in ("quick", "count"):
        api.engine.behave(Behaviour(lasts_s=0.0), command=(command,))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    gpu = Device()
    devices, prepared = SampledDevices(gpu, sample_every_s=0.1), partial(prepare, gpu=gpu)
    with served(tmp_path_factory.mktemp("api"), devices=devices, prepare=prepared) as address:
        yield address


@pytest.fixture
def commonage(url: str, tmp_path: Path) -> Run:
    return commonage_at(url, tmp_path)


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
