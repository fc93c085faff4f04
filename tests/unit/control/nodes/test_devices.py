"""GPUs of nodes with agents are shown, attributed and watched like local ones; warnings reach the owner once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.control.world import ROOT, Site, job, submit

from commonage.control.nodes.devices import AllDevices, DeviceWarnings
from commonage.control.usage.attribution import attribute
from commonage.domain.errors import Unavailable
from commonage.domain.nodes import LOCAL_SITE, Allocation, DeviceKey, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import GpuWarning
from commonage.domain.requests import parse_gpus
from commonage.domain.statuses import ProcessOwner
from commonage.domain.workloads import EventKind, State
from commonage.ports.agents import AgentReport
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.testing import factories
from commonage.testing.factories import node_key

pytestmark = pytest.mark.anyio

UUID = "GPU-far-0"


class Elsewhere:
    """One node with one GPU: its agent's reports, and the requests to it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.told: list[Sequence[Allocation]] = []
        self.warnings: list[tuple[str, str, str]] = []
        self.resumed: list[str] = []
        self.connected = True
        self.owner: str | None = None

    def agent_reports(self) -> Sequence[AgentReport]:
        process = ProcessMemory(77, 3000)
        sample = DeviceSample(UUID, 4000, 0.5, processes=(process,))
        owner = ProcessOwner(77, self.owner, "python3", 1e12)  # its clock is another
        report = NodeReport("far", 8000, 32000, (factories.device(uuid=UUID),))
        now = self.site.clock.now()
        return [AgentReport("far", report, now, now, self.connected, samples=(sample,), owners=(owner,))]

    async def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        self.told.append(allocations)

    def take_warnings(self) -> Sequence[tuple[str, str, str]]:
        taken, self.warnings = self.warnings, []
        return taken

    async def resume(self, uuid: str) -> None:
        self.resumed.append(uuid)


def far_site() -> tuple[Site, Elsewhere]:
    site = Site([factories.node("far", [factories.device(uuid=UUID)])], samples_itself=False)
    site.elsewhere = Elsewhere(site)
    return site, site.elsewhere


async def test_what_its_agent_measures_is_shown_and_written_down() -> None:
    site, far = far_site()
    async with site.open() as control:
        mine = await submit(control, job(gpu=parse_gpus("4GiB")))
        await site.sampled(control, 5)
        far.owner = f"{mine.id}-1"
        await site.sampled(control, 10)
        [view] = control.node_views.all()
        assert view.devices[0].used_mib == 4000
        assert view.devices[0].utilisation == 0.5
        assert view.devices[0].unattributed == ()
        assert control.sampling.vram == {f"{mine.id}-1": 3000}
        assert [allocation.attempt_id for allocation in far.told[-1]] == [f"{mine.id}-1"]


async def test_processes_of_nobody_there_are_told() -> None:
    site, _ = far_site()
    async with site.open() as control:
        await site.sampled(control, 15)
        [view] = control.node_views.all()
        [unattributed_process] = view.devices[0].unattributed
        assert (unattributed_process.pid, unattributed_process.memory_mib, unattributed_process.name) == (
            77,
            3000,
            "python3",
        )


async def test_what_is_old_is_no_measurement() -> None:
    site, far = far_site()
    far.connected = False
    async with site.open() as control:
        await site.sampled(control, 5)
        [view] = control.node_views.all()
        assert view.devices[0].used_mib is None


async def test_its_warnings_reach_the_owner_and_a_sound_device_is_said_to_be_so() -> None:
    site, far = far_site()
    async with site.open() as control:
        mine = await submit(control)
        await site.sampled(control, 5)
        far.warnings = [("far", f"{mine.id}-1", "its MPS daemon ended")]
        await site.sampled(control, 5)
        told = [one.reason for one in site.store.shelf.events if one.kind is EventKind.WARNING]
        assert GpuWarning(detail="its MPS daemon ended") in told
        await control.nodes.resume(ROOT, node_key("far"), UUID)
        assert far.resumed == [UUID]


class Neighbor:
    """The agent of the node `attacker`, which speaks of a GPU and of an attempt of the node `victim`."""

    def __init__(self) -> None:
        mine, theirs, made_up = (
            ProcessMemory(1, 100),
            ProcessMemory(2, 90_000, "theirs-1"),
            ProcessMemory(4, 1, "made-up"),
        )
        samples = (
            DeviceSample("GPU-attacker", 1, 0.5, processes=(mine, theirs, made_up, ProcessMemory(3, 80_000))),
            DeviceSample("GPU-victim", 99_999, 1.0),
        )
        owners = (ProcessOwner(1, "mine-1", "python3", 0.0), ProcessOwner(3, "theirs-1", "python3", 0.0))
        report = NodeReport("attacker", 8000, 32000, (factories.device(uuid="GPU-attacker"),))
        self._agent_reports = AgentReport("attacker", report, 0.0, 0.0, True, samples=samples, owners=owners)

    def agent_reports(self) -> Sequence[AgentReport]:
        return [self._agent_reports]

    async def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        pass

    def take_warnings(self) -> Sequence[tuple[str, str, str]]:
        return []


async def test_an_agent_says_nothing_of_the_devices_and_attempts_of_another_node() -> None:
    here: Any = SimpleNamespace(note_allocations=lambda _: None, take_warnings=lambda: ())
    neighbor: Any = Neighbor()
    devices = AllDevices(here, {LOCAL_SITE: neighbor})
    allocations = {"theirs-1": "victim", "mine-1": "attacker"}
    await devices.note_allocations(
        [Allocation(attempt, LOCAL_SITE, node, 1000, 256, (), 0.0) for attempt, node in allocations.items()], []
    )
    round_ = devices.add_elsewhere(attribute(LOCAL_SITE, [], [], 0.0), 0.0)
    assert round_.samples.keys() == {DeviceKey(LOCAL_SITE, "GPU-attacker")}
    assert {attempt for attempt, _ in round_.uses} == {"mine-1"}, "the watchdog must not end the victim's work for it"


async def test_no_other_node_warns_the_owner_of_a_workload_that_waits() -> None:
    workload = factories.workload_id()
    attempt = factories.attempt(workload, state=State.LOST)
    waiting = factories.workload(State.QUEUED, id=workload, attempt=attempt)
    here: Any = SimpleNamespace(note_allocations=lambda _: None, take_warnings=lambda: ())
    site, far = far_site()
    written: list[Any] = []

    async def write(**rows: Any) -> None:
        written.append(rows)

    live_state: Any = SimpleNamespace(get=lambda _: waiting)
    writer: Any = SimpleNamespace(write=write)
    warnings = DeviceWarnings(AllDevices(here, {LOCAL_SITE: far}), live_state, writer, site.clock)
    far.warnings = [("attacker", attempt.id, "made up")]
    await warnings.collect()
    assert written == []


async def test_only_the_node_of_an_attempt_warns_its_owner() -> None:
    site, far = far_site()
    site.engine.add_node(factories.node("other").report)
    async with site.open() as control:
        mine = await submit(control, job(gpu=parse_gpus("4GiB")))
        await site.sampled(control, 5)
        far.warnings = [
            ("other", f"{mine.id}-1", "made up"),
            ("far", f"{mine.id}-1", "true"),
        ]
        await site.sampled(control, 5)
        assert [reason for _, reason in told(site) if isinstance(reason, GpuWarning)] == [GpuWarning(detail="true")]


def told(site: Site) -> list[tuple[str | None, Reason]]:
    return [(one.attempt_id, one.reason) for one in site.store.shelf.events if one.kind is EventKind.WARNING]


async def test_the_owner_is_told_once() -> None:
    site = Site(samples_itself=False)
    async with site.open() as control:
        mine = await submit(control)
        await site.sampled(control, 5)
        site.devices.warnings = [(f"{mine.id}-1", "its MPS daemon ended"), (f"{mine.id}-9", "nobody's")]
        await site.sampled(control, 10)
        assert told(site) == [(f"{mine.id}-1", GpuWarning(detail="its MPS daemon ended"))]
        (event,) = [one for one in site.store.shelf.events if one.kind is EventKind.WARNING]
        assert (event.owner, event.workload_id) == ("ann", mine.id)


async def test_it_is_told_when_the_store_is_back() -> None:
    site = Site(samples_itself=False)
    async with site.open() as control:
        mine = await submit(control)
        await site.sampled(control, 5)
        site.devices.warnings = [(f"{mine.id}-1", "its MPS daemon ended")]
        site.store.trouble = Unavailable("the database is away")
        looking = asyncio.create_task(control.device_warnings.collect())
        while not looking.done():
            await site.clock.advance(1)
            await asyncio.sleep(0.01)
        with pytest.raises(Unavailable):
            await looking
        site.store.trouble = None
        await site.clock.advance(10)
        await site.sampled(control, 5)
        assert len(told(site)) == 1
