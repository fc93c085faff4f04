"""What many do to the control plane: `python tests/bench/bench_crowd.py`. Figures for a person; nothing is asserted.

10,000 jobs of which no two are alike, lists and explanations among them; submits while 50 follow all events; and 20,000
jobs through, so that memory which is not given back would show. Each on a server of its own, through the proxy, with
the helpers of `commonage bench control`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

from commonage.cli.bench import control
from commonage.cli.bench.http import Connection
from commonage.cli.bench.report import machine, median, percentile
from commonage.cli.bench.server import Served, server
from commonage.wire.hub import API_PATH

CLIENTS, FOLLOWERS, DIFFERENT = 10, 50, 10_000
ROUNDS, ROUND = 10, 2000


def different(number: int) -> dict[str, Any]:
    body = {
        **control.NO_OP,
        "name": f"work {number}",
        "owner": f"user-{number % 50}",
        "cpus": f"{10 + number % 1000}m",
        "memory": f"{16 + number % 97}MiB",
        "variables": {"NUMBER": str(number)},
    }
    if number % 3 == 0:
        body["gpus"] = f"{1 + number % 20}GiB"
    if number % 2 == 0:
        body["time"] = f"{10 + number % 50}m"
    return body


async def submits(served: Served, bodies: list[dict[str, Any]]) -> None:
    before, began = served.cpu_s, time.perf_counter()
    await control.submit_all(served, bodies, CLIENTS)
    rate = len(bodies) / (time.perf_counter() - began)
    each = (served.cpu_s - before) / len(bodies) * 1000
    print(f"  {rate:.0f} submits/s, {each:.2f} ms of the control plane's CPU each; {served.resident_mib:.0f} MiB")


async def none_alike(served: Served) -> None:
    async with Connection(served.url, served.token) as connection:
        await control.fill_the_machine(connection)
        await submits(served, [different(number) for number in range(DIFFERENT)])
        last = (await connection.json("GET", "/workloads?state=queued&limit=1"))["items"][0]["id"]
        for path in (
            "/workloads?state=queued&limit=100&counts=true",
            "/workloads?state=queued&owner=user-7&limit=100",
            "/workloads?text=work%2099&limit=100",
            f"/workloads/{last}/explanation",
        ):
            times = []
            for _ in range(50):
                began = time.perf_counter()
                await connection.json("GET", path)
                times.append((time.perf_counter() - began) * 1000)
            print(
                f"  GET {path.replace(last, 'LAST')}: median {median(times):.1f}, p95 {percentile(times, 0.95):.1f} ms"
            )


async def follow(served: Served) -> None:
    """Read all events and drop them: what is measured is the server, not a client."""
    where = urlsplit(served.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"GET {API_PATH}/events HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {served.token}\r\n"
    writer.write(f"{head}Accept: text/event-stream\r\n\r\n".encode())
    while await reader.read(1 << 16):
        pass


async def followed(served: Served) -> None:
    async with Connection(served.url, served.token) as connection:
        await control.fill_the_machine(connection)
        await submits(served, [control.NO_OP] * 2000)
        followers = [asyncio.create_task(follow(served)) for _ in range(FOLLOWERS)]
        await asyncio.sleep(2)
        await submits(served, [control.NO_OP] * 2000)
        for follower in followers:
            follower.cancel()


async def through(served: Served) -> None:
    for number in range(1, ROUNDS + 1):
        _, seconds = await control.through(served, [control.NO_OP] * ROUND, CLIENTS)
        print(f"  {number * ROUND} jobs: {ROUND / seconds:.0f} jobs/s, {served.resident_mib:.1f} MiB")


def main() -> None:
    print(machine())
    for what, run in (
        ("10,000 queued, no two alike", none_alike),
        ("2,000 submits, then 2,000 more while 50 follow all events", followed),
        ("20,000 jobs through", through),
    ):
        print(what)
        with server("--gpus", "simulated:2x24GiB") as served:
            asyncio.run(run(served))


if __name__ == "__main__":
    main()
