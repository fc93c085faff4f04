"""Figures of the process engine alone: no-op jobs per second, and what one start costs the event loop.

    .venv/bin/python tests/bench/bench_process_engine.py [JOBS]

Prints figures; nothing here is a test.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from commonage.domain.environments import Environment
from commonage.domain.fleet import Lease
from commonage.domain.sightings import Order, Seen
from commonage.domain.workloads import Kind
from commonage.engines.process.engine import ProcessEngine

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


async def main(jobs: int) -> None:
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
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
