"""`process-engine`: the process engine without a control plane: jobs per second, event loop delay, session starts."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import click

from benchmarks.report import BenchmarkError, Figure, as_json, percentile, progress, show
from commonage.domain.images import Environment
from commonage.domain.nodes import LOCAL_SITE, Allocation
from commonage.domain.statuses import Phase, StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings

HERE = Environment("here", "Here", python=sys.executable)


ROUNDS, RUNNING = 50, 200


@click.command("process-engine")
@click.option("--jobs", type=click.IntRange(0), default=500, show_default=True, help="No-op jobs for each rate.")
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False),
    help="Python of an environment with jupyterhub-singleuser: also measure session starts.",
)
@as_json
def process_engine(jobs: int, python: str | None, as_json: bool) -> None:
    """No-op jobs, delay of the event loop, and session starts of the process engine.

    \b
    Example:
      python -m benchmarks process-engine --jobs 1000
      python -m benchmarks process-engine --jobs 0 --python ~/notebook/bin/python
    """
    click.echo(show("The process engine", asyncio.run(_all(jobs, python)), as_json=as_json))


async def _all(jobs: int, python: str | None) -> list[Figure]:
    figures: list[Figure] = []
    if python:
        with _hub() as hub:
            for warm in (False, True):
                progress(f"sessions, {'warm' if warm else 'cold'}")
                figures += await _sessions(python, hub, warm, 10)
    if jobs:
        async with _engine(ProcessSettings()) as engine:
            progress("one job after the other")
            figures += await _latency(engine, 0)
            lagging = asyncio.create_task(_lags())
            for index, at_once in enumerate((1, 4, 16, 64)):
                progress(f"{jobs} jobs, {at_once} at once")
                figures += await _throughput(engine, jobs, at_once, 1000 + index * jobs)
            lagging.cancel()
            late = await lagging
            how = f"delay of a sleep of 1 ms; 99th percentile {percentile(late, 0.99) * 1000:.3g} ms"
            figures.append(Figure("event loop late", median(late) * 1000, "ms", how))
            progress(f"{RUNNING} running jobs")
            figures.append(await _measuring(engine))
    return figures


@asynccontextmanager
async def _engine(settings: ProcessSettings) -> AsyncIterator[ProcessEngine]:
    with tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
        engine = ProcessEngine("site", Path(folder), settings=settings)
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()


def _request(number: int, command: tuple[str, ...]) -> StartRequest:
    attempt = f"bench{number:08}-1"
    allocation = Allocation(attempt, LOCAL_SITE, "node", 1000, 256, (), time.time())
    return StartRequest(attempt, attempt[:-2], Kind.JOB, "bench", "ada", "lab", HERE, command, allocation)


async def _lags() -> list[float]:
    """Record the delay, in seconds, of a task that sleeps a millisecond, until cancelled."""
    found = []
    try:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            found.append(time.perf_counter() - before - 0.001)
    except asyncio.CancelledError:
        return found


async def _throughput(engine: ProcessEngine, jobs: int, at_once: int, first: int) -> list[Figure]:
    """Start `jobs` no-op jobs, `at_once` in flight, and wait for their ends."""
    slots = asyncio.Semaphore(at_once)
    left = jobs

    async def notice_ends() -> None:
        nonlocal left
        async for status in engine.watch():
            if status.phase is Phase.ENDED:
                slots.release()
                left -= 1
                if left == 0:
                    return

    noticing = asyncio.create_task(notice_ends())
    await asyncio.sleep(0)
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(first, first + jobs):
        await slots.acquire()
        await engine.start(_request(number, ("true",)))
    await noticing
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    how = f"{jobs} no-op jobs from start to end"
    return [
        Figure(f"jobs, {at_once} at once", jobs / took, "jobs/s", how),
        Figure(f"CPU of a job, {at_once} at once", cpu / jobs * 1000, "ms", "of the engine's process, for each"),
    ]


async def _latency(engine: ProcessEngine, first: int) -> list[Figure]:
    """One job at a time: time until `start` returns, and until the end is reported."""
    starts, ends = [], []
    for number in range(first, first + ROUNDS):
        ended = asyncio.create_task(_next_end(engine))
        await asyncio.sleep(0)
        began = time.perf_counter()
        await engine.start(_request(number, ("true",)))
        starts.append(time.perf_counter() - began)
        await ended
        ends.append(time.perf_counter() - began)
    return [
        Figure("start, alone", median(starts) * 1000, "ms", f"until the call returns; median of {ROUNDS}"),
        Figure("start to end, alone", median(ends) * 1000, "ms", "of a no-op job, until its end is seen; the same"),
    ]


async def _next_end(engine: ProcessEngine) -> None:
    async for status in engine.watch():
        if status.phase is Phase.ENDED:
            return


async def _measuring(engine: ProcessEngine) -> Figure:
    """The cost of sampling many running attempts."""
    requests = [_request(900_000 + number, ("sleep", "600")) for number in range(RUNNING)]
    for request in requests:
        await engine.start(request)
    began = time.perf_counter()
    found = len(await engine.measure())
    took = time.perf_counter() - began
    await _stop_all(engine)
    return Figure("measure all", took * 1000, "ms", f"{found} running attempts, once")


async def _stop_all(engine: ProcessEngine) -> None:
    for one in await engine.statuses():
        await engine.stop(one.attempt_id, 0)
    while not all(one.phase is Phase.ENDED for one in await engine.statuses()):
        await asyncio.sleep(0.05)


@contextmanager
def _hub() -> Iterator[int]:
    """A fake JupyterHub; returns its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()


class _Hub(http.server.BaseHTTPRequestHandler):
    """Answers the requests of a starting session."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"version": "6.1.0"}')

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _session(number: int, python: str, hub: int) -> StartRequest:
    attempt = f"session{number:06}-1"
    allocation = Allocation(attempt, LOCAL_SITE, "node", 1000, 1024, (), time.time())
    place = Environment("notebook", "Notebook", python=python, kinds=(Kind.SESSION,))
    base = f"/user/ada/{number}/"
    variables = {
        "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:{port}" + base,
        "JUPYTERHUB_SERVICE_PREFIX": base,
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub}/hub/api",
        "JUPYTERHUB_ACTIVITY_URL": "",
        "JUPYTERHUB_USER": "ada",
        "JUPYTERHUB_CLIENT_ID": "bench",
        "JUPYTERHUB_API_TOKEN": "0" * 32,
    }
    request = _request(0, ())
    return replace(
        request, attempt_id=attempt, workload_id=attempt[:-2], kind=Kind.SESSION, environment=place,
        allocation=allocation,
        variables=tuple(variables.items()), wants_port=True,
    )  # fmt: skip


def _answers(url: str, path: str) -> bool:
    address = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    try:
        address.request("GET", path)
        return address.getresponse().status < 500
    except OSError:
        return False
    finally:
        address.close()


async def _session_start(engine: ProcessEngine, number: int, python: str, hub: int) -> float:
    """Seconds from the start request until the session's server answers."""
    request = _session(number, python, hub)
    began = time.perf_counter()
    await engine.start(request)
    while True:
        [seen] = [one for one in await engine.statuses() if one.attempt_id == request.attempt_id]
        if seen.phase is Phase.ENDED:
            lines = [line.text async for line in engine.logs(request.attempt_id, tail=5)]
            raise BenchmarkError("the session ended: " + " / ".join(lines))
        if seen.url:
            is_ready = await asyncio.to_thread(_answers, seen.url, f"/user/ada/{number}/api")
            if is_ready:
                return time.perf_counter() - began
        await asyncio.sleep(0.04)


async def _sessions(python: str, hub: int, warm: bool, at_once: int) -> list[Figure]:
    """Session starts: the first, then one at a time, then several at once; and their CPU and memory use."""
    async with _engine(ProcessSettings(warm_sessions=warm)) as engine:
        first = await _session_start(engine, 0, python, hub)
        alone = [await _session_start(engine, 1 + number, python, hub) for number in range(5)]
        concurrent = await asyncio.gather(
            *(_session_start(engine, 10 + number, python, hub) for number in range(at_once))
        )
        measured = await engine.measure()
        await _stop_all(engine)
    name = f"session, {'warm' if warm else 'cold'}"
    how = "from the start until its server answers"
    return [
        Figure(f"{name}, the first", first, "s", how),
        Figure(f"{name}, alone", median(alone), "s", f"{how}; median of {len(alone)}"),
        Figure(f"{name}, {at_once} at once, median", median(concurrent), "s", how),
        Figure(f"{name}, {at_once} at once, last", max(concurrent), "s", how),
        Figure(f"{name}, CPU", median([one.cpu_s for one in measured]), "s", "median, until all answered"),
        Figure(f"{name}, memory", median([one.memory_mib for one in measured]), "MiB", "median"),
    ]
