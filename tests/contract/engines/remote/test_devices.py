"""GPUs of an appliance: measured like those here, also during an outage; their warnings arrive once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.remote.rig import SITE, RemoteFakeRig
from tests.contract.engines.remote.test_outages import pass_rounds

from commonage.domain.errors import EngineFailure, Unavailable
from commonage.domain.node_usage import NodeUsage
from commonage.domain.nodes import Allocation, Device, Share
from commonage.domain.reasons.devices import GpuDriverSilent
from commonage.domain.statuses import Phase, ProcessOwner, StartRequest
from commonage.engines.remote.engine import RemoteEngine
from commonage.gpu.none import NoDevices
from commonage.link.sites.messages.engine import DeviceWarning, DeviceWarnings, Samples
from commonage.ports.agents import AgentReport, ignore_progress
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.ports.metrics import Sample
from commonage.testing import factories
from commonage.testing.engine_rig import FOREVER

pytestmark = pytest.mark.anyio
UUID = "GPU-0"


class OneGpu(NoDevices):
    """One GPU with the processes that a test names. `held` by pid, in MiB."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.warnings: list[tuple[str, str]] = []
        self.running: Sequence[Allocation] = ()
        self.fault = True
        self.answers = threading.Event()
        self.answers.set()
        self.taken, self.gives_warnings = threading.Event(), threading.Event()
        self.gives_warnings.set()

    def inventory(self) -> Sequence[Device]:
        return [factories.device(uuid=UUID, simulated=False, faults=(GpuDriverSilent(),) if self.fault else ())]

    def measure(self) -> Sequence[DeviceSample]:
        self.answers.wait()
        processes = tuple(ProcessMemory(pid, mib) for pid, mib in self.held.items())
        return [DeviceSample(UUID, sum(self.held.values()), 0.5, 200.0, 61.0, processes)]

    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        self.running = allocations

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        taken, self.warnings = self.warnings, []
        if taken:
            self.taken.set()
            self.gives_warnings.wait()
        return taken

    def resume(self, uuid: str | None = None) -> None:
        self.fault = self.fault and uuid != UUID


class GpuRig(RemoteFakeRig):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.devices = self.gpu = OneGpu()

    def request(self) -> StartRequest:
        request = self.start_request(FOREVER)
        share = Share(UUID, 0, "GPU", 8192, 333, False, 24576)
        return replace(request, allocation=replace(request.allocation, shares=(share,)))

    async def measured(self) -> AgentReport:
        engine = await self.engine()
        await engine.measure()
        [report] = engine.devices.agent_reports()
        return report


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[GpuRig]:
    rig = GpuRig(tmp_path)
    await rig.engine()
    yield rig
    rig.gpu.answers.set()
    rig.gpu.gives_warnings.set()
    await rig.close()


async def test_processes_on_a_gpu_are_reported_with_their_owners(rig: GpuRig) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    local, now = await rig.fake.engine(), rig.clock.now()
    rig.gpu.held = {7: 3000, 8: 500, 9: 100}
    local.owned = {
        7: ProcessOwner(7, request.attempt_id, "python3", now - 5),
        8: ProcessOwner(8, None, "Xorg", now - 100),
        9: ProcessOwner(9, request.attempt_id, "python3", now + 5),
    }
    report = await rig.measured()
    assert (report.node, report.connected, report.at) == (request.allocation.node, True, now)
    assert [(one.uuid, one.memory_used_mib, one.temperature_c) for one in report.samples] == [(UUID, 3600, 61.0)]
    assert {one.pid: one.attempt_id for one in report.owners} == {7: request.attempt_id, 8: None}, (
        "a process that began later is another one"
    )
    await rig.cut()
    [report] = (await rig.engine()).devices.agent_reports()
    assert not report.connected


async def test_site_knows_by_itself_whose_share_is_in_use(rig: GpuRig) -> None:
    request = await rig.started(rig.request())
    status = await rig.status(request.attempt_id)
    await rig.measured()
    assert status is not None
    assert list(rig.gpu.running) == [replace(request.allocation, at=status.started_at)]
    await rig.stop_agent()
    await rig.start_agent()
    await rig.connect()
    await rig.measured()
    assert [one.attempt_id for one in rig.gpu.running] == [request.attempt_id]
    await (await rig.engine()).stop(request.attempt_id, 0)
    await rig.phase(request.attempt_id, Phase.ENDED)
    await rig.measured()
    assert list(rig.gpu.running) == []


async def test_samples_of_gpus_and_nodes_of_an_outage_are_stored_afterwards(rig: GpuRig) -> None:
    request = await rig.started(rig.request())
    local = await rig.fake.engine()
    rig.gpu.held = {7: 3000}
    local.owned = {7: ProcessOwner(7, request.attempt_id, "python3", 0.0)}
    node = (await local.nodes())[0]
    local.add_node(replace(node, usage=NodeUsage(cpu_cores=1.5, temperature_c=55.0)))
    await rig.pass_time(1)
    await rig.cut()
    await pass_rounds(rig, 10)
    await rig.connect()
    wanted = {
        (f"device:{SITE}/{UUID}", "gpu_memory_mib"): 3000,
        (f"device:{SITE}/{UUID}", "gpu_utilisation"): 0.5,
        (f"device:{SITE}/{UUID}", "power_w"): 200.0,
        (f"device:{SITE}/{UUID}", "temperature_c"): 61.0,
        (f"attempt:{request.attempt_id}", "gpu_memory_mib"): 3000,
        (f"attempt:{request.attempt_id}", "gpu_utilisation"): 0.5,
        (f"node:{SITE}/{node.name}", "cpu_cores"): 1.5,
        (f"node:{SITE}/{node.name}", "temperature_c"): 55.0,
    }

    async def are_stored() -> bool:
        return len({one.at for one in rig.stored}) >= 8

    await rig.until(are_stored, "the samples are stored")
    stored = {(one.subject, one.metric): one.value for one in rig.stored}
    assert {key: stored.get(key) for key in wanted} == wanted


async def test_site_writes_no_samples_but_those_that_it_measures(rig: GpuRig) -> None:
    engine = await rig.engine()
    bad = [
        ("queue_length", "platform"), ("running", "node:/here"), ("allocated_cpu_cores", "node:/here"),
        ("cpu_cores", "node:other/here"), ("power_w", "device:other/GPU-0"), ("power_w", "node:/here"), ("", ""),
    ]  # fmt: skip
    samples = [Sample(metric, subject, 1.0, 1.0) for metric, subject in bad]
    good = Sample("power_w", "device:/../other/GPU-0", 1.0, 1.0)
    await engine._on_samples(Samples((*samples, good)), ignore_progress)
    assert [one.subject for one in rig.stored] == [f"device:{SITE}/../other/GPU-0"]


async def test_silent_driver_delays_nothing_else(rig: GpuRig) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    rig.gpu.answers.clear()
    engine = await rig.engine()
    for _ in range(3):
        assert [one.attempt_id for one in await engine.measure()] == [request.attempt_id]
        assert list(engine.devices.agent_reports()) == []
    rig.gpu.answers.set()
    assert (await rig.measured()).samples


async def _warnings(rig: GpuRig, engine: RemoteEngine, count: int) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []

    async def have_arrived() -> bool:
        found.extend(engine.devices.take_warnings())
        return len(found) >= count

    await rig.until(have_arrived, "the warnings have arrived")
    return found


async def test_warnings_of_an_outage_arrive_once_and_in_their_order(rig: GpuRig) -> None:
    engine = await rig.engine()
    [node] = {one.name for one in await engine.nodes()}
    rig.gpu.warnings = [("one-1", "first")]
    assert await _warnings(rig, engine, 1) == [(node, "one-1", "first")]
    await rig.cut()
    rig.gpu.warnings = [("one-1", "second"), ("two-1", "third")]
    agent = rig.agent
    assert agent is not None

    async def are_written() -> bool:
        return {("second",), ("third",)} <= set(await agent._file.read("SELECT text FROM warnings"))

    await rig.until(are_written, "the warnings are written")
    assert rig.gpu.warnings == []
    await rig.stop_agent()
    await rig.start_agent()
    await rig.stop_control()
    engine = await rig.start_control()
    await rig.connect()
    assert [text for _, _, text in await _warnings(rig, engine, 2)] == ["second", "third"]
    await rig.pass_time(2)
    assert list(engine.devices.take_warnings()) == []


async def test_warning_taken_while_the_agent_is_stopped_is_kept(rig: GpuRig) -> None:
    engine = await rig.engine()
    await rig.cut()
    rig.gpu.gives_warnings.clear()
    rig.gpu.warnings = [("one-1", "taken")]

    async def is_taken() -> bool:
        return rig.gpu.taken.is_set()

    await rig.until(is_taken, "the agent takes the warning from the devices")
    asyncio.get_running_loop().call_later(0.1, rig.gpu.gives_warnings.set)
    await rig.stop_agent()
    await rig.start_agent()
    await rig.connect()
    assert [text for _, _, text in await _warnings(rig, engine, 1)] == ["taken"]


async def test_warnings_that_the_disk_refuses_are_kept_at_the_next_round(
    rig: GpuRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, agent = await rig.engine(), rig.agent
    assert agent is not None
    keep, refused = agent._warnings.keep, 0

    async def refuse_once(found: Sequence[tuple[str, str, str]]) -> None:
        nonlocal refused
        if found and not refused:
            refused += 1
            raise Unavailable("no space left")
        await keep(found)

    monkeypatch.setattr(agent._warnings, "keep", refuse_once)
    rig.gpu.warnings = [("one-1", "refused")]
    assert [text for _, _, text in await _warnings(rig, engine, 1)] == ["refused"]
    assert refused == 1


async def test_warning_whose_acknowledgement_was_lost_is_not_taken_twice(rig: GpuRig) -> None:
    engine = await rig.engine()
    sent = DeviceWarnings((DeviceWarning(5, "here", "one-1", "it"),))
    await engine.devices.on_warnings(sent, ignore_progress)
    await rig.stop_control()
    engine = await rig.start_control()
    await engine.devices.on_warnings(sent, ignore_progress)
    assert list(engine.devices.take_warnings()) == []
    await rig.connect()


async def test_resumed_gpu_is_resumed_at_the_site(rig: GpuRig) -> None:
    engine = await rig.engine()
    await engine.devices.resume("GPU-other")
    assert rig.gpu.fault
    await engine.devices.resume(UUID)
    assert not rig.gpu.fault
    await rig.cut()
    with pytest.raises(EngineFailure):
        await engine.devices.resume(UUID)
