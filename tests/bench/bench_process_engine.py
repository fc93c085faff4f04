"""Figures of the process engine alone: no-op jobs per second, what one start costs the event loop, session starts.

    .venv/bin/python tests/bench/bench_process_engine.py [JOBS [PYTHON]]

PYTHON is that of an environment with `jupyterhub-singleuser`; without it sessions are left out. Prints figures; nothing
here is a test.
"""

import asyncio
import http.client
import http.server
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

from commonage.domain.environments import Environment
from commonage.domain.fleet import Lease
from commonage.domain.sightings import Order, Seen
from commonage.domain.workloads import Kind
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.process.settings import ProcessSettings

HERE = Environment("here", "Here", python=sys.executable)


def order_of(number: int, command: tuple[str, ...]) -> Order:
    attempt = f"bench{number:08}-1"
    lease = Lease(attempt, "node", 1000, 256, (), time.time())
    return Order(attempt, attempt[:-2], Kind.JOB, "bench", "ada", "lab", HERE, command, lease)


async def lags() -> list[float]:
    """How late the event loop wakes us, in seconds, every millisecond until cancelled."""
    found = []
    try:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            found.append(time.perf_counter() - before - 0.001)
    except asyncio.CancelledError:
        return found


async def throughput(engine: ProcessEngine, jobs: int, at_once: int, first: int) -> None:
    """Start `jobs` no-op jobs, `at_once` in flight, and wait for their ends."""
    slots = asyncio.Semaphore(at_once)
    left = jobs

    async def notice_ends() -> None:
        nonlocal left
        async for sighting in engine.watch():
            if sighting.seen is Seen.ENDED:
                slots.release()
                left -= 1
                if left == 0:
                    return

    noticing = asyncio.create_task(notice_ends())
    await asyncio.sleep(0)
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(first, first + jobs):
        await slots.acquire()
        await engine.start(order_of(number, ("true",)))
    await noticing
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(
        f"{at_once:3} at once: {jobs / took:5.0f} jobs/s from start to end, {cpu / jobs * 1000:.2f} ms CPU of ours each"
    )


async def latency(engine: ProcessEngine, rounds: int, first: int) -> None:
    """One job at a time: how long until `start` returns, and until the end is seen."""
    starts, ends = [], []
    for number in range(first, first + rounds):
        watch = engine.watch()
        seen = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        began = time.perf_counter()
        await engine.start(order_of(number, ("true",)))
        starts.append(time.perf_counter() - began)
        while (await seen).seen is not Seen.ENDED:
            seen = asyncio.create_task(anext(watch))
        ends.append(time.perf_counter() - began)
        await watch.aclose()
    print(
        f"alone: start returns after {median(starts) * 1000:.1f} ms, its end is seen after {median(ends) * 1000:.1f} ms"
    )


async def measuring(engine: ProcessEngine, running: int) -> None:
    """What it costs to measure so many running attempts."""
    orders = [order_of(900_000 + number, ("sleep", "600")) for number in range(running)]
    for order in orders:
        await engine.start(order)
    began = time.perf_counter()
    found = len(await engine.measure())
    print(f"{found} running attempts are measured in {(time.perf_counter() - began) * 1000:.0f} ms")
    for order in orders:
        await engine.stop(order.attempt_id, 0)
    async for _ in engine.watch():
        if all(sighting.seen is Seen.ENDED for sighting in await engine.sightings()):
            return


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as a session asks for at its start."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"version": "6.1.0"}')

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def session_of(number: int, python: str, hub: int) -> Order:
    attempt = f"session{number:06}-1"
    lease = Lease(attempt, "node", 1000, 1024, (), time.time())
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
    order = order_of(0, ())
    return replace(
        order, attempt_id=attempt, workload_id=attempt[:-2], kind=Kind.SESSION, environment=place, lease=lease,
        variables=tuple(variables.items()), wants_port=True,
    )  # fmt: skip


def answers(url: str, path: str) -> bool:
    address = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    try:
        address.request("GET", path)
        return address.getresponse().status < 500
    except OSError:
        return False
    finally:
        address.close()


async def session_start(engine: ProcessEngine, number: int, python: str, hub: int) -> float:
    """Seconds from asking the engine for a session until its server answers."""
    order = session_of(number, python, hub)
    began = time.perf_counter()
    await engine.start(order)
    while True:
        [seen] = [one for one in await engine.sightings() if one.attempt_id == order.attempt_id]
        if seen.seen is Seen.ENDED:
            lines = [line.text async for line in engine.logs(order.attempt_id, tail=5)]
            raise SystemExit("the session ended: " + " / ".join(lines))
        if seen.url and await asyncio.to_thread(answers, seen.url, f"/user/ada/{number}/api"):
            return time.perf_counter() - began
        await asyncio.sleep(0.04)


async def sessions(python: str, hub: int, warm: bool, at_once: int) -> None:
    """Session starts, the first alone, then one after the other, then some at once; and what they hold."""
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as folder:
        engine = ProcessEngine("site", Path(folder), settings=ProcessSettings(warm_sessions=warm))
        await engine.open()
        first = await session_start(engine, 0, python, hub)
        alone = [await session_start(engine, 1 + number, python, hub) for number in range(5)]
        crowd = await asyncio.gather(*(session_start(engine, 10 + number, python, hub) for number in range(at_once)))
        measured = await engine.measure()
        held, cpu = [found.memory_mib for found in measured], [found.cpu_s for found in measured]
        print(
            f"sessions {'warm' if warm else 'cold'}: the first answers after {first:.2f} s, the next alone after "
            f"{median(alone):.2f} s, {at_once} at once after {median(crowd):.2f} s (last {max(crowd):.2f} s); "
            f"{median(cpu):.2f} s of CPU and {median(held):.0f} MiB each"
        )
        for one in await engine.sightings():
            await engine.stop(one.attempt_id, 0)
        async for _ in engine.watch():
            if all(one.seen is Seen.ENDED for one in await engine.sightings()):
                break
        await engine.close()


async def main(jobs: int, python: str | None) -> None:
    if python:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for warm in (False, True):
            await sessions(python, server.server_port, warm, 10)
    if jobs == 0:
        return
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as folder:
        engine = ProcessEngine("site", Path(folder))
        await engine.open()
        await latency(engine, 50, 0)
        lagging = asyncio.create_task(lags())
        for index, at_once in enumerate((1, 4, 16, 64)):
            await throughput(engine, jobs, at_once, 1000 + index * jobs)
        lagging.cancel()
        late = await lagging
        print(f"event loop late: median {median(late) * 1000:.2f} ms, p99 {quantiles(late, n=100)[98] * 1000:.1f} ms")
        await measuring(engine, 200)
        await engine.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500, sys.argv[2] if len(sys.argv) > 2 else None))
