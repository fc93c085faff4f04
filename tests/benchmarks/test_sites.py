"""`sites`: a few simulated appliances join a real control plane over the site link, run jobs, and come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import WSMsgType, web
from click.testing import CliRunner

from benchmarks.cli import main
from benchmarks.report import BenchmarkError
from benchmarks.sites import notebook
from benchmarks.sites.notebook import Way
from benchmarks.sites.simulated import SimulatedEngine
from benchmarks.sites.sites import starts_figures, tunnel_figures
from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.statuses import Phase
from commonage.gpu.simulated import SimulatedDevices, SimulatedSpec
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import StartRequestFactory
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio


def test_appliances_join_run_jobs_and_come_back_after_a_restart() -> None:
    sizes = "--appliances 2 --gpus 2 --sample-every 1 --seconds 2 --restarts 1 --submits 2 --cells 0"
    result = CliRunner().invoke(main, ["sites", "--json", *sizes.split()])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    figures = {one["name"]: one for one in printed["figures"]}
    assert printed["title"] == "2 appliances with 2 GPUs each"
    assert figures["control plane, CPU"]["unit"] == "cores"
    assert figures["control plane, memory"]["value"] > 0
    assert figures["submit to running, p50"]["baseline"] > 0
    assert figures["jobs lost by restarts"]["value"] == 0
    assert figures["reconnect of all"]["unit"] == "s"


def test_starts_are_compared_with_those_of_the_local_node() -> None:
    middle, high = starts_figures([0.1, 0.2, 0.3], [0.05, 0.1, 0.15])
    assert (middle.value, middle.baseline) == (200, 100)
    assert (high.value, high.baseline) == (300, 150)


def test_cells_are_compared_by_their_difference_and_downloads_by_their_rate() -> None:
    cell, slower, download = tunnel_figures([0.012, 0.014, 0.9], [0.01, 0.011, 0.5], [90, 100, 110], [150, 160, 170])
    assert (cell.value, cell.baseline) == (14, 11)
    assert slower.value == pytest.approx(3)
    assert (download.value, download.baseline) == (100, 160)


async def test_simulated_appliance_runs_nothing_but_sleep() -> None:
    clock = FakeClock()
    engine = SimulatedEngine("lab", clock, SimulatedDevices([SimulatedSpec(8, 1024)], node_name="lab", now=clock.now))
    make = StartRequestFactory(Environment("base", "Base"), "lab", lambda _: ("sleep", "3600"), clock.now, site="lab")
    request = make(Behaviour())
    changes = engine.watch()
    following = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    await engine.start(request)
    assert (await following).phase is Phase.RUNNING
    [measured] = await engine.measure()
    assert measured.attempt_id == request.attempt_id
    await engine.stop(request.attempt_id, 1)
    ended = await anext(changes)
    assert (ended.phase, ended.exit_code) == (Phase.ENDED, 143)
    await engine.forget(request.attempt_id)
    assert await engine.statuses() == []
    with pytest.raises(EngineFailure, match="sleep SECONDS"):
        await engine.start(make(Behaviour(), command=("true",)))
    [node] = await engine.nodes()
    assert len(node.devices) == 8
    await changes.aclose()


# --- a Jupyter server that answers what the benchmark asks ------------------------------------------------------------


async def _new_kernel(request: web.Request) -> web.Response:
    assert request.headers["Authorization"] == "token secret"
    return web.json_response({"id": "k1"}, status=201)


async def _channels(request: web.Request) -> web.WebSocketResponse:
    channel = web.WebSocketResponse()
    await channel.prepare(request)
    async for message in channel:
        if message.type is not WSMsgType.TEXT:
            break
        asked = json.loads(message.data)

        async def send(kind: str, content: dict[str, Any], parent: Any = asked["header"]) -> None:
            await channel.send_json({"msg_type": kind, "parent_header": parent, "content": content})

        await send("status", {"execution_state": "idle"}, {"msg_id": "of another client"})
        if asked["content"]["code"] == "1 / 0":
            await send("error", {"ename": "ZeroDivisionError", "evalue": "division by zero"})
            continue
        await send("stream", {"text": "2\n"})
        await send("status", {"execution_state": "idle"})
    return channel


async def _end_kernel(_request: web.Request) -> web.Response:
    return web.Response(status=204)


async def _file(request: web.Request) -> web.Response:
    return (
        web.Response(body=b"x" * 3_000_000) if request.match_info["name"] == notebook.FILE else web.Response(status=404)
    )


@pytest.fixture
async def way() -> AsyncIterator[Way]:
    app = web.Application()
    app.router.add_post("/user/ada/api/kernels", _new_kernel)
    app.router.add_get("/user/ada/api/kernels/k1/channels", _channels)
    app.router.add_delete("/user/ada/api/kernels/k1", _end_kernel)
    app.router.add_get("/user/ada/files/{name}", _file)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [address] = runner.addresses
    yield Way(address[1], "/user/ada/", "ada.localhost", "secret")
    await runner.cleanup()


async def test_cells_are_timed_each_way_until_their_kernel_is_idle(way: Way) -> None:
    taken = await notebook.cells([way, way], 3)
    assert [len(times) for times in taken] == [3, 3]
    async with notebook.kernel(way) as kernel:
        assert await kernel.run("print(1 + 1)") == "2\n"


async def test_cell_that_fails_ends_the_benchmark_with_its_error(way: Way) -> None:
    async with notebook.kernel(way) as kernel:
        with pytest.raises(BenchmarkError, match="ZeroDivisionError: division by zero"):
            await kernel.run("1 / 0")


async def test_download_counts_every_byte(way: Way) -> None:
    size, seconds = await asyncio.to_thread(notebook.download, way)
    assert size == 3_000_000
    assert seconds > 0
    with pytest.raises(BenchmarkError, match="404"):
        await asyncio.to_thread(notebook.download, Way(way.port, "/user/bob/", way.host, way.token))
