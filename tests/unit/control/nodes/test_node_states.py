"""A GPU fails under its workloads: their owners and admins are notified, and nothing starts on it until it recovers."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.control.world import ANN, BOB, ROOT, Site, job, submit

from commonage.control.nodes.node_states import device_of
from commonage.domain.errors import Forbidden, NotFound
from commonage.domain.nodes import Device, NodeState
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import FatalXid, Remedy
from commonage.domain.reasons.notes import GpuFault, GpuMissing, GpuRecovered
from commonage.domain.requests import parse_gpus
from commonage.domain.workloads import EventKind, State
from commonage.testing import factories as make

pytestmark = pytest.mark.anyio
FELL = FatalXid(number=79, index=0, remedy=Remedy.REBOOT)


def says(site: Site, *devices: Device) -> None:
    """Set the node's report from now on."""
    site.engine.add_node(replace(site.nodes[0], devices=devices))


def told(site: Site, kind: EventKind, workload_id: str | None = None) -> list[Reason]:
    return [one.reason for one in site.store.shelf.events if (one.kind, one.workload_id) == (kind, workload_id)]


async def test_a_device_that_fails_takes_no_new_work_and_its_workloads_are_told(site: Site) -> None:
    (device,) = site.nodes[0].devices
    async with site.open() as control:
        mine = await submit(control, job(gpu=parse_gpus("8GiB")))
        none = await submit(control, job(), BOB)
        later = await submit(control, job(gpu=parse_gpus("1")))
        await site.clock.advance(1)
        says(site, replace(device, faults=(FELL,)))
        await site.clock.advance(60)
        fault = GpuFault(node="gpu-1", gpu="0", model=device.model, faults=(FELL,))
        assert told(site, EventKind.WARNING, mine.id) == [replace(fault, is_held=True)]
        assert not told(site, EventKind.WARNING, none.id)
        assert fault in told(site, EventKind.NODE)
        await control.workloads.stop(ANN, mine.id)
        await site.clock.advance(60)
        assert site.there(later).state is State.QUEUED
        says(site, device)
        await site.clock.advance(60)
        assert site.there(later).state is State.RUNNING
        assert GpuRecovered(node="gpu-1", gpu="0", model=device.model) in told(site, EventKind.NODE)


async def test_a_restart_does_not_tell_again(site: Site) -> None:
    (device,) = site.nodes[0].devices
    says(site, replace(device, faults=(FELL,)))
    async with site.open():
        await site.clock.advance(60)
    async with site.open():
        await site.clock.advance(60)
        assert len([one for one in told(site, EventKind.NODE) if isinstance(one, GpuFault)]) == 1


async def test_a_mig_instance_that_is_taken_away_under_its_workload(site: Site) -> None:
    (device,) = site.nodes[0].devices
    async with site.open() as control:
        mine = await submit(control, job(gpu=parse_gpus("8GiB")))
        await site.clock.advance(1)
        says(site, replace(device, uuid="MIG-9", index=100, parent_uuid=device.uuid))
        await site.clock.advance(60)
        missing = GpuMissing(node="gpu-1", gpu="0", model=device.model, is_held=True)
        assert told(site, EventKind.WARNING, mine.id)[0] == missing


class Forgetful:
    """The GPUs' port, as far as it forgets."""

    def __init__(self, site: Site) -> None:
        self.site, self.forgot = site, []

    def resume(self, uuid: str | None = None) -> None:
        self.forgot.append(uuid)
        devices = self.site.engine._nodes["gpu-1"].devices
        says(self.site, *(replace(device, faults=()) if uuid == device.uuid else device for device in devices))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.site.true_devices, name)


async def test_an_admin_resumes_one_device_or_all_of_a_node() -> None:
    site = Site([make.node("gpu-1", 2)])
    site.true_devices, site.devices = site.devices, Forgetful(site)
    one, two = site.nodes[0].devices
    says(site, replace(one, faults=(FELL,)), replace(two, faults=(FELL,)))
    async with site.open() as control:
        await control.nodes.drain(ROOT, make.node_key("gpu-1"), True)
        node = await control.nodes.resume(ROOT, make.node_key("gpu-1"), "1")
        assert [bool(device.faults) for device in node.report.devices] == [True, False]
        assert (node.drain, site.devices.forgot) == (True, [two.uuid])
        node = await control.nodes.resume(ROOT, make.node_key("gpu-1"))
        assert [bool(device.faults) for device in node.report.devices] == [False, False]
        assert not node.drain
        with pytest.raises(NotFound, match="GPU '7' is none on gpu-1; there are: 0"):
            await control.nodes.resume(ROOT, make.node_key("gpu-1"), "7")
        with pytest.raises(NotFound, match="no node"):
            await control.nodes.resume(ROOT, make.node_key("gpu-9"))
        with pytest.raises(Forbidden):
            await control.nodes.resume(ANN, make.node_key("gpu-1"))


def test_a_device_is_meant_by_index_label_or_uuid() -> None:
    whole = make.device(1, uuid="GPU-1234-aaaa")
    part = make.device(103, uuid="MIG-5678", parent_uuid="GPU-0")
    node = make.node(devices=[whole, part])
    assert [device_of(node, text) for text in ("1", "GPU-12", "GPU-1234-aaaa")] == [whole] * 3
    assert [device_of(node, text) for text in ("0:3", "103", "MIG-5678")] == [part] * 3
    assert (whole.label, part.label) == ("1", "0:3")


async def test_site_that_renames_its_nodes_fills_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonage.control.nodes.nodes.MAX_NODES", 3)
    async with site.open() as control:
        for number in range(10):
            site.engine.add_node(replace(site.nodes[0], name=f"renamed-{number}", devices=()))
        await site.clock.advance(10)
        assert len(control.live_state.nodes) == 3
        assert control.live_state.nodes[make.node_key("gpu-1")].state is NodeState.READY


@pytest.mark.parametrize(
    "sizes",
    [
        {"cpus_milli": -1},
        {"memory_mib": 2**40},
        {"devices": (make.device(memory_mib=-1),)},
        {"devices": tuple(make.device(number) for number in range(257))},
        {"devices": (replace(make.device(), peers=tuple((f"GPU-{number}", 1) for number in range(1000))),)},
        {"labels": tuple((f"label-{number}", "x") for number in range(1000))},
    ],
)
async def test_node_of_impossible_size_is_not_believed(site: Site, sizes: dict[str, Any]) -> None:
    async with site.open() as control:
        site.engine.add_node(replace(site.nodes[0], **sizes))
        site.engine.add_node(replace(site.nodes[0], name="gpu-2", devices=()))
        await site.clock.advance(10)
        states = {node.name: node.state for node in control.live_state.nodes.values()}
        assert (states["gpu-1"], states["gpu-2"]) == (NodeState.FAULTY, NodeState.READY)
