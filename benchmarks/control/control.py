"""`control`: submits, starts, lists and memory of the control plane, through the proxy like any client's request."""

from __future__ import annotations

import asyncio
import json
import time
from statistics import median
from typing import Any

import click

from benchmarks.connection import Connection
from benchmarks.report import BenchmarkError, Figure, as_json, percentile, progress, show
from benchmarks.server import Served, server
from commonage.sdk import AsyncClient

NO_OP: dict[str, Any] = {"kind": "job", "command": ["/bin/true"], "cpus": "10m", "memory_mib": 16, "name": "no-op"}
SPARE_MILLI = 5
SPARE_CPUS = f"{SPARE_MILLI}m"


@click.command
@click.option("--jobs", type=click.IntRange(1), default=800, show_default=True, help="No-op jobs to run through.")
@click.option(
    "--clients", type=click.IntRange(1), default=10, show_default=True, help="Connections that submit at once."
)
@click.option(
    "--queued",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Jobs in the queue for the figures that need one.",
)
@as_json
def control(jobs: int, clients: int, queued: int, as_json: bool) -> None:
    """Submits, starts, lists and memory of the control plane, on a server of its own.

    \b
    Example:
      python -m benchmarks control --jobs 2000
    """
    with server("--gpus", "simulated:2x24GiB") as served:
        figures = asyncio.run(_all(served, jobs, clients, queued))
    click.echo(show("The control plane", figures, as_json=as_json))


async def _all(served: Served, jobs: int, clients: int, queued: int) -> list[Figure]:
    figures = []
    async with Connection(served.url, served.token) as connection:
        progress("one job after the other")
        await through(served, [NO_OP], 1)
        figures += await _latency(served, connection, NO_OP, "idle server")
        progress(f"{jobs} no-op jobs")
        figures += await _throughput(served, jobs, clients)
        figures.append(Figure("memory at rest", served.resident_mib, "MiB", "of the control plane's process"))
        progress(f"a queue of {queued}")
        blocker = await fill_the_node(connection)
        figures += await _submits(served, clients)
        figures += await _arrays(connection, queued)
        figures += await _lists(connection)
        figures += await _latency(served, connection, {**NO_OP, "cpus": SPARE_CPUS}, f"{queued} queued")
        figures.append(Figure("memory with the queue", served.resident_mib, "MiB", f"{queued} jobs queued"))
        figures += await _turnover(served, connection, blocker, queued)
    return figures


async def _latency(served: Served, connection: Connection, job: dict[str, Any], when: str) -> list[Figure]:
    """Submit to running, one at a time; nothing else starts meanwhile."""
    posts, starts = [], []
    body = {**job, "command": ["sleep", "0.05"]}
    async with AsyncClient(served.url, served.token) as client:
        running: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

        async def listen() -> None:
            async for event in client.events():
                if event.kind == "running" and event.workload_id:
                    running.put_nowait((event.workload_id, time.perf_counter()))

        listener = asyncio.create_task(listen())
        await asyncio.sleep(0.5)
        for _ in range(40):
            began = time.perf_counter()
            made = await connection.json("POST", "/workloads", body)
            posts.append(time.perf_counter() - began)
            while True:
                workload_id, at = await asyncio.wait_for(running.get(), 20)
                if workload_id == made["workload"]["id"]:
                    starts.append(at - began)
                    break
            await asyncio.sleep(0.15)
        listener.cancel()
    return [
        Figure(f"{when}: submit, alone", median(posts) * 1000, "ms", "POST answered, durable; median of 40"),
        Figure(f"{when}: submit to running, p50", median(starts) * 1000, "ms", "until the event arrives; 40 jobs"),
        Figure(f"{when}: submit to running, p95", percentile(starts, 0.95) * 1000, "ms", "the same"),
    ]


async def through(served: Served, bodies: list[dict[str, Any]], clients: int) -> tuple[float, float]:
    """Submit all and wait for their success: (seconds until the last submit, until the last end)."""
    async with AsyncClient(served.url, served.token) as client:
        ended: dict[str, str] = {}
        monotonic_at = asyncio.Event()

        async def listen() -> None:
            async for event in client.events():
                if event.kind == "ended" and event.workload_id:
                    ended[event.workload_id] = event.state or ""
                    monotonic_at.set()

        listener = asyncio.create_task(listen())
        await asyncio.sleep(0.3)
        began = time.perf_counter()
        made = await submit_all(served, bodies, clients)
        submitted = time.perf_counter() - began
        while not made <= ended.keys():
            monotonic_at.clear()
            await asyncio.wait_for(monotonic_at.wait(), 60)
        done = time.perf_counter() - began
        listener.cancel()
    if failed := [name for name in made if ended[name] != "succeeded"]:
        raise BenchmarkError(f"{len(failed)} of {len(made)} no-op jobs failed: {failed[0]} {ended[failed[0]]}")
    return submitted, done


async def submit_all(served: Served, bodies: list[dict[str, Any]], clients: int) -> set[str]:
    """Submit from `clients` connections at once; returns all ids."""
    waiting = [json.dumps(body).encode() for body in bodies]
    made: set[str] = set()

    async def one_client() -> None:
        async with Connection(served.url, served.token) as connection:
            while waiting:
                status, answer = await connection.call("POST", "/workloads", waiting.pop())
                if status not in (200, 201):
                    raise BenchmarkError(f"submit: {status} {answer.decode(errors='replace')[:300]}")
                made.update(json.loads(answer)["ids"])

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one_client())
    return made


async def _throughput(served: Served, jobs: int, clients: int) -> list[Figure]:
    before = served.cpu_s
    _, done = await through(served, [NO_OP] * jobs, clients)
    cpu_s = served.cpu_s - before
    how = f"{jobs} jobs from {clients} clients, first submit to last end, each a process of its own"
    return [Figure("no-op jobs", jobs / done, "jobs/s", how), _cpu("CPU of a no-op job", cpu_s, jobs)]


def _cpu(name: str, seconds: float, count: int) -> Figure:
    return Figure(name, seconds / count * 1000, "ms", "the control plane's own processor time for each")


async def fill_the_node(connection: Connection) -> str:
    """Start a job that holds all but a spare part of a core, less than a no-op job takes; returns its id."""
    nodes = await connection.json("GET", "/nodes")
    cpus = nodes["items"][0]["cpus_milli"]
    body = {**NO_OP, "command": ["sleep", "3600"], "cpus": f"{cpus - SPARE_MILLI}m", "name": "holds all cores"}
    made: str = (await connection.json("POST", "/workloads", body))["workload"]["id"]
    await asyncio.sleep(1.0)
    return made


async def _submits(served: Served, clients: int, count: int = 2000) -> list[Figure]:
    before, began = served.cpu_s, time.perf_counter()
    await submit_all(served, [NO_OP] * count, clients)
    rate = count / (time.perf_counter() - began)
    how = f"{count} from {clients} clients, each durable before its answer"
    return [Figure("submits", rate, "submits/s", how), _cpu("CPU of a submit", served.cpu_s - before, count)]


async def _arrays(connection: Connection, queued: int, size: int = 1000) -> list[Figure]:
    """Submit arrays, at least one, until `queued` jobs are queued."""
    times: list[float] = []
    there = 0
    while there < queued or not times:
        began = time.perf_counter()
        await connection.json("POST", "/workloads", {**NO_OP, "array": size, "name": "array"})
        times.append(time.perf_counter() - began)
        there = sum((await connection.json("GET", "/info"))["counts"].values())
    return [Figure("an array of 1,000", median(times) * 1000, "ms", f"one POST, durable; median of {len(times)}")]


async def _lists(connection: Connection) -> list[Figure]:
    """Pages and filters while the queue is long."""
    figures = []
    for name, query in (
        ("list, a page of 100", "limit=100"),
        ("list, queued ones", "state=queued&limit=100"),
        ("list, by name and state", "state=queued&text=array&limit=100"),
        ("list, with counts", "state=queued&limit=100&counts=true"),
    ):
        times = []
        for _ in range(20):
            began = time.perf_counter()
            page = await connection.json("GET", f"/workloads?{query}")
            times.append(time.perf_counter() - began)
        figures.append(Figure(name, median(times) * 1000, "ms", f"{len(page['items'])} rows, median of 20"))
    last = (await connection.json("GET", "/workloads?state=queued&limit=1"))["items"][0]["id"]
    times = []
    for _ in range(5):
        began = time.perf_counter()
        await connection.json("GET", f"/workloads/{last}/explanation")
        times.append(time.perf_counter() - began)
    figures.append(Figure("explain the last in the queue", median(times) * 1000, "ms", "median of 5"))
    return figures


async def _turnover(served: Served, connection: Connection, blocker: str, queued: int) -> list[Figure]:
    """Free the node: the rate at which the long queue drains, and the latency of lists meanwhile."""
    times: list[float] = []

    async def succeeded() -> int:
        counts = (await connection.json("GET", "/workloads?limit=1&counts=true"))["counts"]
        if failed := {"failed", "lost", "timed_out"} & counts.keys():
            raise BenchmarkError(f"no-op jobs failed: {failed} in {counts}")
        return int(counts.get("succeeded", 0))

    before = await succeeded()
    await connection.json("POST", f"/workloads/{blocker}/stop", {})
    began = time.perf_counter()
    while (asked := time.perf_counter()) < began + 20.0:
        await connection.json("GET", "/workloads?state=queued&limit=100&counts=true")
        times.append(time.perf_counter() - asked)
        await asyncio.sleep(0.2)
    rate = (await succeeded() - before) / (time.perf_counter() - began)
    how = f"{len(times)} lists of 100 with counts, meanwhile"
    return [
        Figure("no-op jobs from the long queue", rate, "jobs/s", f"20 s after {queued} queued up"),
        Figure("list while it drains, p50", median(times) * 1000, "ms", how),
        Figure("list while it drains, p95", percentile(times, 0.95) * 1000, "ms", "the same"),
        Figure("memory after it", served.resident_mib, "MiB", "of the control plane's process"),
    ]
