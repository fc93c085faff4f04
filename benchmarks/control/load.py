"""`load`: the control plane under what many users do, through the proxy.

10,000 different queued jobs, with lists and explanations; submits while 50 clients follow all events; and 20,000 jobs
to their ends, to detect memory leaks. Each part runs on its own server.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import click

from benchmarks.connection import Connection
from benchmarks.control.control import NO_OP, fill_the_node, submit_all, through
from benchmarks.report import Figure, as_json, percentile, progress, show
from benchmarks.server import Served, server
from commonage.wire.hub import API_PATH

CLIENTS, FOLLOWERS, DIFFERENT, SUBMITS = 10, 50, 10_000, 2000
ROUNDS, ROUND = 10, 2000


@click.command
@as_json
def load(as_json: bool) -> None:
    """10,000 different jobs, 50 clients that follow all events, and 20,000 jobs to their ends.

    \b
    Example:
      python -m benchmarks load
    """
    figures: list[Figure] = []
    for title, run in (
        (f"{DIFFERENT} different queued jobs", _none_alike),
        (f"{SUBMITS} submits, then {SUBMITS} more while {FOLLOWERS} follow all events", _followed),
        (f"{ROUNDS * ROUND} jobs to their ends", _to_their_ends),
    ):
        progress(title)
        with server("--gpus", "simulated:2x24GiB") as served:
            figures += asyncio.run(run(served))
    click.echo(show("The control plane under load", figures, as_json=as_json))


def _different(number: int) -> dict[str, Any]:
    body = {
        **NO_OP,
        "name": f"work {number}",
        "owner": f"user-{number % 50}",
        "cpus": f"{10 + number % 1000}m",
        "memory_mib": 16 + number % 97,
        "variables": {"NUMBER": str(number)},
    }
    if number % 3 == 0:
        body["gpus"] = f"{1 + number % 20}GiB"
    if number % 2 == 0:
        body["time_limit_s"] = (10 + number % 50) * 60
    return body


async def _submits(served: Served, name: str, bodies: list[dict[str, Any]]) -> list[Figure]:
    before, began = served.cpu_s, time.perf_counter()
    await submit_all(served, bodies, CLIENTS)
    rate = len(bodies) / (time.perf_counter() - began)
    each = (served.cpu_s - before) / len(bodies) * 1000
    how = f"{len(bodies)} from {CLIENTS} clients; {served.resident_mib:.0f} MiB afterwards"
    return [
        Figure(f"submits, {name}", rate, "submits/s", how),
        Figure(f"CPU of a submit, {name}", each, "ms", "the control plane's own processor time for each"),
    ]


async def _none_alike(served: Served) -> list[Figure]:
    async with Connection(served.url, served.token) as connection:
        await fill_the_node(connection)
        figures = await _submits(served, "all different", [_different(number) for number in range(DIFFERENT)])
        last = (await connection.json("GET", "/workloads?state=queued&limit=1"))["items"][0]["id"]
        for name, path in (
            ("list, with counts", "/workloads?state=queued&limit=100&counts=true"),
            ("list, of one owner", "/workloads?state=queued&owner=user-7&limit=100"),
            ("list, by text", "/workloads?text=work%2099&limit=100"),
            ("explain the last in the queue", f"/workloads/{last}/explanation"),
        ):
            times = []
            for _ in range(50):
                began = time.perf_counter()
                await connection.json("GET", path)
                times.append((time.perf_counter() - began) * 1000)
            how = f"median of {len(times)}; 95 of 100 within {percentile(times, 0.95):.1f} ms"
            figures.append(Figure(name, median(times), "ms", how))
    return figures


async def _follow(served: Served) -> None:
    """Read and drop all events, with little work for the client."""
    where = urlsplit(served.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"GET {API_PATH}/events HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {served.token}\r\n"
    writer.write(f"{head}Accept: text/event-stream\r\n\r\n".encode())
    while await reader.read(1 << 16):
        pass


async def _followed(served: Served) -> list[Figure]:
    async with Connection(served.url, served.token) as connection:
        await fill_the_node(connection)
        figures = await _submits(served, "without followers", [NO_OP] * SUBMITS)
        followers = [asyncio.create_task(_follow(served)) for _ in range(FOLLOWERS)]
        await asyncio.sleep(2)
        figures += await _submits(served, f"{FOLLOWERS} follow", [NO_OP] * SUBMITS)
        for follower in followers:
            follower.cancel()
    return figures


async def _to_their_ends(served: Served) -> list[Figure]:
    figures = []
    for number in range(1, ROUNDS + 1):
        _, seconds = await through(served, [NO_OP] * ROUND, CLIENTS)
        how = f"the control plane's process; {ROUND / seconds:.0f} jobs/s in the last {ROUND}"
        figures.append(Figure(f"memory after {number * ROUND} jobs", served.resident_mib, "MiB", how))
    return figures
