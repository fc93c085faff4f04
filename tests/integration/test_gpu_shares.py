"""Shares from the request to the workload's own environment: simulated GPUs, the process engine, the whole API."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.metrics import KeptMetrics
from tests.fakes.waiting import until
from tests.integration.api_world import SPAWNER, URL, FakeIdentity

from commonage.api.app import create_app
from commonage.api.auth import Auth
from commonage.cli.output import shares
from commonage.control.control import Adapters, Control
from commonage.control.engines import Engines
from commonage.control.settings import ControlSettings
from commonage.domain.images import Environment
from commonage.domain.nodes import Isolation, Strength
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings
from commonage.gpu.detect import share_devices
from commonage.gpu.isolation.devices import Sharing
from commonage.gpu.slots import parse_slots
from commonage.server.bootstrap import SystemClock
from commonage.store.bundle_files import BundleFiles
from commonage.testing.fakes.store import MemoryStore
from commonage.wire.hub import API_PATH
from commonage.wire.workloads import WorkloadOut

pytestmark = pytest.mark.anyio
SHELL = Environment("base", "This machine's own shell", python="/bin/sh")


class Installation:
    def __init__(self, control: Control, client: httpx2.AsyncClient) -> None:
        self.control, self.client = control, client

    async def run(self, gpus: str, script: str = "sleep 60") -> dict[str, Any]:
        asked = {"kind": "job", "gpus": gpus, "command": ["sh", "-c", script], "memory_mib": 64, "cpus": "0.1"}
        made = await self.client.post("/workloads", json=asked)
        assert made.status_code == 201, made.text
        (workload_id,) = made.json()["ids"]
        return await self.until_not(workload_id, "queued", "starting")

    async def end(self, workload: dict[str, Any]) -> None:
        await self.client.post(f"/workloads/{workload['id']}/stop", json={})
        await self.until_not(workload["id"], "running")

    async def says(self, workload: dict[str, Any]) -> str:
        for _ in range(500):
            text = (await self.client.get(f"/workloads/{workload['id']}/logs")).text
            if text:
                return text
            await asyncio.sleep(0.02)
        raise AssertionError("it says nothing")

    async def until_not(self, workload_id: str, *states: str) -> dict[str, Any]:
        for _ in range(500):
            found = (await self.client.get(f"/workloads/{workload_id}")).json()
            if found["state"] not in states:
                return dict(found)
            await asyncio.sleep(0.02)
        raise AssertionError(f"{workload_id} stays {found['state']}: {found['reason']}")


@asynccontextmanager
async def installed(data: Path, gpus: str, slots: str = "") -> AsyncIterator[Installation]:
    clock = SystemClock()
    sharing = Sharing(data / "gpus", slots=parse_slots(slots))
    devices = share_devices(gpus, sharing, node_name="here", clock=clock).devices
    engine = ProcessEngine("local", data, devices=devices, settings=ProcessSettings(node_name="here"))
    identity = FakeIdentity()
    world = Adapters(
        store=MemoryStore(),
        metrics=KeptMetrics(),
        clock=clock,
        identity=identity,
        bundles=BundleFiles(data / "bundles"),
        devices=devices,
        engines=Engines([engine]),
        environments=[SHELL],
        chance=random.randrange,
    )
    control = Control(world, ControlSettings())
    await control.store.open()
    await control.open()
    loops = asyncio.create_task(control.run())
    app = create_app(control, Auth(identity, SPAWNER))
    transport = httpx2.ASGITransport(app=app)
    headers = {"Authorization": "Bearer ann"}
    try:
        async with httpx2.AsyncClient(transport=transport, base_url=f"{URL}{API_PATH}", headers=headers) as client:
            await until(control.node_views.all)
            yield Installation(control, client)
            await control.stop_all()
            assert not devices.enforced()
    finally:
        loops.cancel()
        await asyncio.wait([loops])
        await control.close()


async def test_a_third_of_a_device_and_a_third_of_its_memory_are_the_same_share(tmp_path: Path) -> None:
    async with installed(tmp_path, "simulated:1x36GiB", "3") as here:
        held = []
        for gpus in ("1/3", "12GiB", "4GiB"):
            workload = await here.run(gpus)
            assert workload["state"] == "running", workload
            held.append([(share["memory_mib"], share["compute_milli"]) for share in workload["shares"]])
        assert held == [[(12288, 333)]] * 3
        fourth = await here.client.post("/workloads/dry-run", json={"kind": "job", "gpus": "1GiB", "command": ["true"]})
        assert fourth.json()["startable_now"] is False


async def test_the_launch_form_offers_slots_of_devices_that_have_some(tmp_path: Path) -> None:
    async with installed(tmp_path, "simulated:1x36GiB", "3") as here:
        offered = (await here.client.get("/launch-options")).json()["gpu_choices"]
        assert [one["gpus"] for one in offered] == ["1/3", "2/3", "1"]
        assert offered[0]["title"] == "1/3 of a GPU"


async def test_the_level_is_recorded_and_shown_and_frameworks_are_told(tmp_path: Path) -> None:
    async with installed(tmp_path, "simulated:1x24GiB") as here:
        workload = await here.run("6GiB", 'echo "$PYTHONPATH $COMMONAGE_GPU_USABLE_MIB"; sleep 60')
        (share,) = workload["shares"]
        assert (share["isolation"], share["strength"]) == (Isolation.COOPERATIVE, Strength.COOPERATIVE)
        assert shares(WorkloadOut.model_validate(workload).shares) == "6 GiB of GPU 0 (simulated)"
        assert "injected/python 5632" in await here.says(workload)
        await here.end(workload)
        whole = await here.run("1", 'echo "path:$PYTHONPATH."; sleep 60')
        assert "path:." in await here.says(whole)
