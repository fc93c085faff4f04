"""The control plane over an appliance: its nodes and GPUs are shown, watched and accounted for as local ones."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from tests.contract.engines.remote.rig import SITE, RemoteRealRig
from tests.contract.engines.rigs import ProcessRig
from tests.fakes.metrics import KeptMetrics
from tests.fakes.waiting import until
from tests.integration.api_world import URL, FakeIdentity

from commonage.api.app import create_app
from commonage.api.auth import Auth
from commonage.cli.nodes import view
from commonage.control.control import Adapters, Control
from commonage.control.engines import Engines
from commonage.control.queries.node_views import NodeView
from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.images import Environment
from commonage.domain.nodes import Device, NodeKey, NodeState
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.attempts import OverGpuShare
from commonage.domain.reasons.devices import GpuDriverSilent
from commonage.domain.reasons.notes import GpuWarning
from commonage.domain.requests import parse_gpus
from commonage.domain.workloads import Kind, State, Workload
from commonage.engines.settings import ProcessSettings
from commonage.gpu.none import NoDevices
from commonage.metrics.prometheus import PATH as METRICS_PATH
from commonage.metrics.prometheus import metrics_router
from commonage.portal.auth import PortalAuth
from commonage.portal.router import create_router
from commonage.ports.agents import RemoteDevices
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.server.bootstrap import SystemClock
from commonage.store.bundle_files import BundleFiles
from commonage.testing import factories
from commonage.testing.fakes.store import MemoryStore
from commonage.wire.hub import API_PATH, CALLBACK_PATH, PORTAL_PATH
from commonage.wire.nodes import NodeList

pytestmark = pytest.mark.anyio
GIB = 1024
ADMIN = "admin:root"
NODE = NodeKey(SITE, "here")
ROOT = Principal("root", frozenset(Scope))
ANN = Principal("ann", frozenset({Scope.READ, Scope.SUBMIT}))
SHELL = Environment("base", "The appliance's own shell", python="/bin/sh")


class TwoGpus(NoDevices):
    """Two GPUs, the second one faulty. `held` are the processes on the first, in MiB."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.warnings: list[tuple[str, str]] = []

    def inventory(self) -> Sequence[Device]:
        faulty = factories.device(1, uuid="GPU-1", simulated=False, faults=(GpuDriverSilent(),))
        return [factories.device(uuid="GPU-0", simulated=False), faulty]

    def measure(self) -> Sequence[DeviceSample]:
        listed = tuple(ProcessMemory(pid, mib) for pid, mib in self.held.items())
        return [DeviceSample("GPU-0", sum(self.held.values()), 0.5, 210.0, 61.0, listed, energy_j=1000.0)]

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        taken, self.warnings = self.warnings, []
        return taken


@dataclass
class Platform:
    """Control with an appliance as its only site with nodes."""

    control: Control
    rig: RemoteRealRig
    gpus: TwoGpus
    store: MemoryStore
    identity: FakeIdentity

    async def runs(self) -> tuple[Workload, int]:
        """A job with 8 GiB, and the number of its process."""
        ask = Submission(
            Kind.JOB, ("sh", "-c", "echo $$; sleep 600"), gpu=parse_gpus("8GiB"), memory_mib=64, cpus_milli=100
        )
        (made,) = (await self.control.workloads.submit(ANN, ask)).workloads
        await until(lambda: self.state(made) is State.RUNNING)
        async for line in (await self.rig.engine()).logs(f"{made.id}-1", follow=True):
            return made, int(line.text)
        raise AssertionError("it said nothing")

    def state(self, workload: Workload) -> State | None:
        found = self.control.live_state.get(workload.id)
        return found.state if found else None

    def node(self) -> NodeView:
        [found] = [one for one in self.control.node_views.all() if one.node.key == NODE]
        return found

    async def visit(self, *paths: str) -> list[str]:
        """The pages at these addresses for an admin who has signed in to the portal."""
        portal = create_router(self.control, PortalAuth(self.identity, self.control.clock, "the secret of the portal"))
        app = create_app(self.control, Auth(self.identity), portal, metrics_router(self.control).routes)
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with httpx2.AsyncClient(transport=transport, base_url=URL, headers=headers) as client:
            sent_away = (await client.get(PORTAL_PATH)).headers["location"]
            state = parse_qs(urlsplit(sent_away).query)["state"][0]
            await client.get(CALLBACK_PATH, params={"state": state, "code": ADMIN})
            answers = [await client.get(path) for path in paths]
        assert [one.status_code for one in answers] == [200] * len(paths)
        return [one.text for one in answers]


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    gpus, clock, store, identity = TwoGpus(), SystemClock(), MemoryStore(), FakeIdentity()
    settings = ProcessSettings(node_name=NODE.name, memory_mib=4096, cgroups=False)
    rig = RemoteRealRig(ProcessRig(tmp_path / "data", settings, gpus), tmp_path)
    rig.devices = gpus
    elsewhere: dict[str, RemoteDevices] = {}
    adapters = Adapters(
        store=store, metrics=KeptMetrics(), clock=clock, identity=identity,
        bundles=BundleFiles(tmp_path / "bundles"), devices=NoDevices(), engines=Engines(), environments=[SHELL],
        chance=random.randrange, elsewhere=elsewhere,
    )  # fmt: skip
    policy = ControlSettings(gpu_over_share="stop", gpu_over_share_after_s=0, sample_every_s=0.5)
    control = Control(adapters, policy)
    await store.open()
    await control.open()
    engine = await rig.engine()
    elsewhere[SITE] = engine.devices
    control.engines.add(engine)
    loops = asyncio.create_task(control.run())
    platform = Platform(control, rig, gpus, store, identity)
    await until(control.node_views.all)
    try:
        yield platform
    finally:
        loops.cancel()
        await asyncio.wait([loops])
        await rig.close()


async def test_measured_use_of_nodes_and_gpus_is_shown_everywhere(platform: Platform) -> None:
    platform.gpus.held = {os.getpid(): 700}

    def is_measured() -> bool:
        used, device = platform.node().node.report.usage, platform.node().devices[0]
        return used is not None and used.cpu_cores is not None and bool(device.unattributed)

    await until(is_measured, "two measurements")
    api, page, metrics = await platform.visit(f"{API_PATH}/nodes", f"{PORTAL_PATH}nodes", METRICS_PATH)
    [node] = NodeList.model_validate_json(api).items
    assert (node.site, node.name) == NODE
    assert node.usage is not None
    for figure in ("cpu_cores", "memory_mib", "disk_used_mib", "disk_total_mib", "load"):
        assert getattr(node.usage, figure) is not None, figure
    first, second = node.devices
    assert (first.used_mib, first.utilisation) == (700, 0.5)
    assert first.measured is not None
    assert (first.measured.power_w, first.measured.temperature_c) == (210.0, 61.0)
    assert [(one.pid, one.memory_mib) for one in first.unattributed] == [(os.getpid(), 700)]
    assert [one.code for one in second.faults] == ["GpuDriverSilent"]

    console = Console(width=200, record=True, file=StringIO())
    console.print(view.usage_table([node]), view.device_table([node]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert [line[1] for line in lines if line[:1] == [f"{SITE}/here"]] == ["ready"]
    assert any(f"{SITE}/here/0" in line for line in lines)

    for text in (f"{SITE}/here", "61 °C", "700 MiB"):
        assert text in page

    families = text_string_to_metric_families(metrics)
    values = {
        one.name: one.value
        for family in families
        for one in family.samples
        if (one.labels.get("site"), one.labels.get("node")) == NODE and one.labels.get("device", "0") == "0"
    }
    assert values["commonage_device_used_memory_bytes"] == 700 * 1024**2
    assert values["commonage_device_unattributed_memory_bytes"] == 700 * 1024**2
    assert values["commonage_device_power_watts"] == 210.0
    assert values["commonage_node_used_memory_bytes"] > 0
    assert values["commonage_node_used_disk_bytes"] > 0
    assert "commonage_node_used_cpu_cores" in values


async def test_attempt_over_its_share_is_stopped_and_accounted_for(platform: Platform) -> None:
    (mine, pid), (theirs, beside) = await platform.runs(), await platform.runs()
    platform.gpus.warnings = [(f"{theirs.id}-1", "its MPS daemon ended"), ("other-1", "of nobody")]
    platform.gpus.held = {pid: 10 * GIB, beside: 6 * GIB}
    await until(lambda: platform.state(mine) is None, "it is stopped")
    ended = await platform.store.workload(mine.id)
    assert ended.state is State.STOPPED
    assert isinstance(ended.reason, OverGpuShare)
    assert (ended.reason.used_mib, ended.reason.share_mib) == (10 * GIB, 8 * GIB)
    assert platform.state(theirs) is State.RUNNING
    report = await platform.control.usage_reports.of(ended)
    assert report is not None
    assert report.vram_peak_mib == 10 * GIB

    def warned() -> list[str | None]:
        return [one.attempt_id for one in platform.store.shelf.events if isinstance(one.reason, GpuWarning)]

    await until(warned, "the warning is an event")
    assert warned() == [f"{theirs.id}-1"]


async def test_drained_node_keeps_its_work_and_gets_no_other(platform: Platform) -> None:
    mine, _ = await platform.runs()
    await platform.control.nodes.drain(ROOT, NODE, True)
    ask = Submission(Kind.JOB, ("true",), memory_mib=64, cpus_milli=100)
    (waits,) = (await platform.control.workloads.submit(ANN, ask)).workloads
    await until(lambda: platform.state(waits) is State.QUEUED)
    for _ in range(3):
        await platform.control.nodes.refresh()
    assert (platform.state(mine), platform.state(waits)) == (State.RUNNING, State.QUEUED)
    assert platform.node().node.state is NodeState.DRAINING
    await platform.control.nodes.resume(ROOT, NODE)
    await until(lambda: platform.state(waits) is None, "it has run")
    assert (await platform.store.workload(waits.id)).state is State.SUCCEEDED
