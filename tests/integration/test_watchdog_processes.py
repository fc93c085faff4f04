"""Real processes on a GPU that only the test simulates: their owners, and which one is ended when it uses too much."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fakes.metrics import KeptMetrics
from tests.fakes.waiting import until
from tests.integration.api_world import FakeIdentity

from commonage.control.control import Adapters, Control
from commonage.control.engines import Engines
from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.images import Environment
from commonage.domain.nodes import Device
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.attempts import OverGpuShare
from commonage.domain.requests import parse_gpus
from commonage.domain.workloads import Kind, State, Workload
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings
from commonage.gpu.none import NoDevices
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.server.bootstrap import SystemClock
from commonage.store.bundle_files import BundleFiles
from commonage.testing import factories
from commonage.testing.fakes.store import MemoryStore

pytestmark = pytest.mark.anyio
GIB = 1024
ANN = Principal("ann", frozenset({Scope.READ, Scope.SUBMIT}))
SHELL = Environment("base", "This machine's own shell", python="/bin/sh")
# A child in a session of its own, with nothing in its environment: what holds the attempt together still has it.
DETACHES = "setsid env -i sleep 60 & echo $!; wait"


class OneDevice(NoDevices):
    """One GPU, on which the processes are that a test names."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def inventory(self) -> Sequence[Device]:
        return [factories.device(uuid="GPU-0", simulated=False)]

    def measure(self) -> Sequence[DeviceSample]:
        listed = tuple(ProcessMemory(pid, mib) for pid, mib in self.held.items())
        return [DeviceSample("GPU-0", sum(self.held.values()), 0.5, processes=listed)]


class Site:
    """Control over the process engine."""

    def __init__(self, data: Path, *, cgroups: bool) -> None:
        self.device, self.cgroups = OneDevice(), cgroups
        settings = ProcessSettings(node_name="here", memory_mib=4096, cgroups=cgroups)
        self.engine = ProcessEngine("local", data, devices=self.device, settings=settings)
        world = Adapters(
            store=MemoryStore(), metrics=KeptMetrics(), clock=SystemClock(), identity=FakeIdentity(),
            bundles=BundleFiles(data / "bundles"), devices=self.device, engines=Engines([self.engine]),
            environments=[SHELL],
            chance=random.randrange,
        )  # fmt: skip
        self.control = Control(world, ControlSettings(gpu_over_share="stop", gpu_over_share_after_s=0))

    async def runs(self) -> tuple[Workload, int]:
        """A job with 8 GiB, and the number of the process that it detached."""
        command = ("sh", "-c", DETACHES)
        ask = Submission(Kind.JOB, command, gpu=parse_gpus("8GiB"), memory_mib=64, cpus_milli=100)
        (made,) = (await self.control.workloads.submit(ANN, ask)).workloads
        await until(lambda: self.there(made) is State.RUNNING, within_s=30)
        async for line in self.engine.logs(f"{made.id}-1", follow=True):
            return made, int(line.text)
        raise AssertionError("it said nothing")

    def there(self, workload: Workload) -> State | None:
        found = self.control.live_state.get(workload.id)
        return found.state if found else None


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.needs("cgroups")), False], ids=["cgroups", "marks"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, cgroups=request.param)
    await site.control.store.open()
    await site.control.open()
    loops = asyncio.create_task(site.control.run())
    await until(site.control.node_views.all)
    yield site
    for pid in site.device.held.keys() - {os.getpid()}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await site.control.stop_all()
    loops.cancel()
    await asyncio.wait([loops])
    await site.control.close()


async def test_the_culprit_is_ended_with_its_detached_child_and_its_neighbour_goes_on(site: Site) -> None:
    (mine, child), (theirs, beside) = await site.runs(), await site.runs()
    site.device.held = {child: 10 * GIB, beside: 8 * GIB, os.getpid(): 700}
    for _ in range(2):
        await site.control.sampling.tick()
    assert site.control.sampling.vram == {f"{mine.id}-1": 10 * GIB, f"{theirs.id}-1": 8 * GIB}
    (unattributed_processes,) = site.control.watchdog.unattributed_processes.values()
    assert [(one.pid, one.memory_mib) for one in unattributed_processes] == [(os.getpid(), 700)]
    assert unattributed_processes[0].name
    await until(lambda: site.there(mine) is None, within_s=30)
    ended = await site.control.store.workload(mine.id)
    assert ended.state is State.STOPPED
    assert isinstance(ended.reason, OverGpuShare)
    assert (ended.reason.used_mib, ended.reason.share_mib) == (10 * 1024, 8 * 1024)
    if site.cgroups:
        assert await site.engine.owners([child]) == [], "the child is gone, too"
    else:
        os.kill(child, signal.SIGKILL)  # without them one that hides like this outlives its workload
    assert site.there(theirs) is State.RUNNING
    usage_report = await site.control.usage_reports.of(ended)
    assert usage_report is not None
    assert usage_report.vram_peak_mib == 10 * GIB
