"""`api`: submits and lists of the API alone, by clients in a process of their own.

With the store in memory, mostly the API is measured; store and scheduler run as well.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median

import click
import uvicorn
import uvloop
from tests.fakes.waiting import until
from tests.integration.api_world import FakeIdentity, make_control

from benchmarks.connection import Connection
from benchmarks.report import BenchmarkError, Figure, as_json, percentile, progress, show
from commonage.api.app import create_app
from commonage.api.auth import Auth
from commonage.server.processes.ports import free_port
from commonage.store.sql_store import SqlStore
from commonage.store.upgrade import upgrade

SUBMIT = json.dumps({"command": ["true"], "name": "bench", "gpus": "6GiB", "time_limit_s": 600}).encode()
TOKEN = "ann"
LISTS = {
    "list, a page of 100": "limit=100",
    "list, a page of 500": "limit=500",
    "list, by name and state": "limit=100&state=queued&text=ben",
    "list, with counts": "limit=1&counts=true",
}


@click.command
@click.option(
    "--store", type=click.Choice(["memory", "sqlite"]), default="memory", show_default=True, help="The store."
)
@click.option("--seconds", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Time for each rate.")
@as_json
def api(store: str, seconds: float, as_json: bool) -> None:
    """Submits per second by 1 and 10 connections, and lists of what they submitted.

    \b
    Example:
      python -m benchmarks api --store sqlite
    """
    click.echo(show(f"The API, store in {store}", uvloop.run(_all(store, seconds)), as_json=as_json))


async def _all(store: str, seconds: float) -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
        async with _served(Path(folder), store) as url:
            for connections in (1, 10):
                progress(f"submits, {connections} at once")
                figures += await _submits(url, connections, seconds)
            progress("lists")
            async with Connection(url, TOKEN) as connection:
                for name, query in LISTS.items():
                    figures.append(await _list(connection, name, query))
    return figures


@asynccontextmanager
async def _served(folder: Path, store: str) -> AsyncIterator[str]:
    """Run the API in this process; returns its address."""
    sql = None
    if store == "sqlite":
        url = f"sqlite+aiosqlite:///{folder}/bench.db"
        await upgrade(url)
        sql = SqlStore(url)
    control, _ = make_control(folder, sql)
    await control.store.open()
    await control.open()
    writer = asyncio.create_task(control.writer.run())
    await control.nodes.refresh()
    port = free_port()
    app = create_app(control, Auth(FakeIdentity()))
    config = uvicorn.Config(app, port=port, access_log=False, log_level="warning", loop="uvloop", http="httptools")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving
    writer.cancel()


async def _submits(url: str, connections: int, seconds: float) -> list[Figure]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_clients, args=(url, connections, seconds, there))
    process.start()
    there.close()
    try:
        times = await asyncio.to_thread(here.recv)
    except EOFError:
        raise BenchmarkError("the submitting clients ended early; see their error above") from None
    finally:
        process.join()
    how = f"{len(times)} in {seconds:g} s from {connections} connections of another process"
    name = f"{connections} at once"
    return [
        Figure(f"submits, {name}", len(times) / seconds, "submits/s", how),
        Figure(f"submit, {name}, p50", median(times) * 1000, "ms", "the same"),
        Figure(f"submit, {name}, p99", percentile(times, 0.99) * 1000, "ms", "the same"),
    ]


def _clients(url: str, connections: int, seconds: float, answers: Pipe) -> None:
    """Submit from `connections` at once for `seconds`; send the duration of each submit."""
    answers.send(asyncio.run(_submit_for(url, connections, seconds)))


async def _submit_for(url: str, connections: int, seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        async with Connection(url, TOKEN) as connection:
            while time.perf_counter() < end:
                began = time.perf_counter()
                status, answer = await connection.call("POST", "/workloads", SUBMIT)
                if status != 201:
                    raise BenchmarkError(f"submit: {status} {answer.decode(errors='replace')[:300]}")
                times.append(time.perf_counter() - began)

    await asyncio.gather(*(one() for _ in range(connections)))
    return times


async def _list(connection: Connection, name: str, query: str) -> Figure:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        page = await connection.json("GET", f"/workloads?{query}")
        times.append(time.perf_counter() - began)
    return Figure(name, median(times) * 1000, "ms", f"{len(page['items'])} rows, median of {len(times)}")
