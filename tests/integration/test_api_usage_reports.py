"""GPU shares through the API: warnings above the share, usage reports, and suggestions from them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import STORES, Api, SampledDevices, make_store, serving

from commonage.domain.statuses import ProcessOwner
from commonage.domain.workloads import State
from commonage.gpu.none import NoDevices
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
UUID = "GPU-gpu-1-0"
ASK = {"command": ["python", "train.py"], "gpus": "8GiB"}


class Device(NoDevices):
    """One GPU that measures what a test says."""

    processes: tuple[ProcessMemory, ...] = ()

    def measure(self) -> Sequence[DeviceSample]:
        used = sum(one.memory_mib or 0 for one in self.processes)
        return [DeviceSample(UUID, used, 0.5, power_w=200.0, processes=self.processes)]


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture(params=STORES)
async def api(request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str, device: Device) -> AsyncIterator[Api]:
    store = make_store(request.param, tmp_path, request)
    async with serving(tmp_path, store, devices=SampledDevices(device)) as running:
        running.engine.default = Behaviour(lasts_s=None, holds_mib=300)
        yield running


async def started(api: Api, ask: dict[str, Any], token: str = "ann") -> str:
    async with api.client(token) as client:
        answer = await client.post("/workloads", json=ask)
    workload_id: str = answer.json()["workload"]["id"]
    await until(lambda: (found := api.control.live_state.get(workload_id)) and found.state is State.RUNNING)
    return workload_id


async def measured(api: Api, device: Device, workload_id: str, mib: int, rounds: int = 2) -> None:
    device.processes = (ProcessMemory(7, mib, utilisation=0.5),)
    api.engine.owned[7] = ProcessOwner(7, f"{workload_id}-1", "python3", 0.0)
    for _ in range(rounds):
        await api.control.sampling.tick()


async def test_usage_report_leads_to_a_suggestion(api: Api, device: Device) -> None:
    one = await started(api, ASK)
    await measured(api, device, one, 4000)
    async with api.client("ann") as ann, api.client("bob") as bob:
        so_far = (await ann.get(f"/workloads/{one}")).json()["usage_report"]
        assert (so_far["final"], so_far["vram_mib"], so_far["vram_peak_mib"]) == (False, 8192, 4000)
        api.engine.end(f"{one}-1")
        await until(lambda: api.control.live_state.get(one) is None)
        usage_report = (await ann.get(f"/workloads/{one}")).json()["usage_report"]
        assert usage_report["final"] is True
        assert (usage_report["devices"], usage_report["sufficient_vram_mib"], usage_report["memory_peak_mib"]) == (
            1,
            4608,
            300,
        )
        assert usage_report["summary"].startswith(
            "requested 8 GiB of GPU memory, peak 4000 MiB, 4.5 GiB would be enough; "
        )
        assert usage_report["gpu_utilisation"] == pytest.approx(0.5)
        assert usage_report["energy_wh"] > 0
        await api.control.sampling.tick()
        assert (await ann.get(f"/workloads/{one}")).json()["usage_report"] == usage_report, "also from the database"
        listed = (await ann.get("/workloads")).json()["items"]
        assert [each["usage_report"] for each in listed] == [None]

        advised = (await ann.post("/workloads/dry-run", json=ASK)).json()["suggestion"]
        assert (advised["gpus"], advised["peak_mib"], advised["runs"]) == ("4.5GiB", 4000, 1)
        assert advised["too_much"] is True
        assert advised["workload_id"] == one
        other = {**ASK, "command": ["python", "test.py"]}
        assert (await ann.post("/workloads/dry-run", json=other)).json()["suggestion"] is None
        assert (await bob.post("/workloads/dry-run", json=ASK)).json()["suggestion"] is None, "that is Ann's"


async def test_warns_over_share_and_shows_unattributed_processes(api: Api, device: Device) -> None:
    one = await started(api, ASK)
    await measured(api, device, one, 12_000, rounds=3)
    async with api.client("ann") as ann, api.client("admin:root") as root:
        events = (await ann.get(f"/workloads/{one}/events")).json()["items"]
        (warning,) = [each for each in events if each["kind"] == "warning"]
        assert warning["reason"]["code"] == "OverGpuShareWarning"
        over = warning["reason"]["params"]
        assert (over["gpu"], over["used_mib"], over["share_mib"]) == ("0", 12_000, 8 * 1024)
        device.processes = (ProcessMemory(99, 700),)
        api.engine.owned[99] = ProcessOwner(99, None, "blender", 0.0)
        for _ in range(2):
            await api.control.sampling.tick()
        nodes = (await ann.get("/nodes")).json()["items"]
        (shown,) = [device for node in nodes for device in node["devices"]]
        assert shown["unattributed"] == [{"pid": 99, "memory_mib": 700, "name": "blender"}]
        seen = (await root.get("/events")).json()["items"]
        assert any(each["reason"]["code"] == "UnattributedGpuMemory" for each in seen)
        mine = (await ann.get("/events")).json()["items"]
        assert not any(each["reason"]["code"] == "UnattributedGpuMemory" for each in mine)
