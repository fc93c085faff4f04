"""Figures of the API: submits and lists per second, by clients in a process of their own, over a store in memory.

    .venv/bin/python tests/bench/bench_api.py [--store sqlite] [--seconds 5]

What the store and the scheduler cost is in it as far as they run; with the store in memory it is mostly the API.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.integration.api_world import FakeIdentity, make_control, until

from commonage.api.app import create_app
from commonage.api.auth import Auth
from commonage.store.sql_store import SqlStore
from commonage.store.upgrade import upgrade
from commonage.wire.hub import API_PATH

PORT = 18_431
BASE = f"http://127.0.0.1:{PORT}{API_PATH}"
ASK = json.dumps({"command": ["true"], "name": "bench", "gpus": "6GiB", "time": "10m"}).encode()
HEADERS = {"Authorization": "Bearer ann", "Content-Type": "application/json"}


def client(connections: int, seconds: float, conn: object) -> None:
    """Keep `connections` submits under way for so long, over bare sockets: the client must not be the slow part."""
    asyncio.run(_clients(connections, seconds, conn))


async def _clients(connections: int, seconds: float, conn: object) -> None:
    request = (
        f"POST {API_PATH}/workloads HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(ASK)}\r\n\r\n"
    ).encode() + ASK
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        while time.perf_counter() < end:
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 201 " in head[:20], head
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    conn.send(times)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", choices=["memory", "sqlite"], default="memory")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = None
        if options.store == "sqlite":
            url = f"sqlite+aiosqlite:///{folder}/bench.db"
            await upgrade(url)
            store = SqlStore(url)
        control, _ = make_control(Path(folder), store)
        await control.store.open()
        await control.open()
        ledger = asyncio.create_task(control.ledger.run())
        await control.fleet.tick()
        app = create_app(control, Auth(FakeIdentity()))
        config = uvicorn.Config(app, port=PORT, access_log=False, log_level="warning", loop="uvloop", http="httptools")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        for connections in (1, 10):
            await submits(connections, options.seconds)
        async with httpx2.AsyncClient(base_url=BASE, headers=HEADERS) as http:
            for query in ("limit=100", "limit=500", "limit=100&state=queued&text=ben", "limit=1&counts=true"):
                await lists(http, query)
        server.should_exit = True
        await serving
        ledger.cancel()


async def submits(connections: int, seconds: float) -> None:
    """Submits from so many connections of another process."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=client, args=(connections, seconds, there))
    process.start()
    times = await asyncio.to_thread(here.recv)
    process.join()
    times.sort()
    print(
        f"submit, {connections:2d} at once: {len(times) / seconds:7.0f}/s, "
        f"p50 {1000 * statistics.median(times):.1f} ms, p99 {1000 * times[int(len(times) * 0.99)]:.1f} ms"
    )


async def lists(http: httpx2.AsyncClient, query: str) -> None:
    """The time a list takes, by the one who asks."""
    times = []
    for _ in range(20):
        began = time.perf_counter()
        (await http.get(f"/workloads?{query}")).raise_for_status()
        times.append(time.perf_counter() - began)
    print(f"GET /workloads?{query}: p50 {1000 * statistics.median(times):.1f} ms")


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
