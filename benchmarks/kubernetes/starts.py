"""Submit to running of one job after the other, and the same Pods without us, in turn."""

from __future__ import annotations

import asyncio
import random
import time
from statistics import median
from typing import Any

from benchmarks.connection import Connection
from benchmarks.kubernetes.cluster import Cluster, pod
from benchmarks.report import Figure, percentile, progress
from benchmarks.server import Served
from commonage.engines.kubernetes.client import PODS
from commonage.sdk import AsyncClient

SHORT_JOB: dict[str, Any] = {"kind": "job", "name": "short", "cpus": "200m", "memory_mib": 32}
_LASTS: dict[str, Any] = {**SHORT_JOB, "command": ["/bin/sh", "-c", "sleep 1"]}
_WITHIN_S = 120.0
_PAUSE_S = (0.3, 1.3)
"""At random: a kubelet looks at its containers once a second, and the end of a Pod tells when."""


async def starts(cluster: Cluster, served: Served, count: int) -> list[Figure]:
    progress(f"{count} jobs and {count} Pods, one after the other")
    ours, bare = [], []
    async with (
        cluster.pods().following() as pods,
        AsyncClient(served.url, served.token) as client,
        Connection(served.url, served.token) as connection,
    ):
        events: asyncio.Queue[tuple[str | None, str, float]] = asyncio.Queue()

        async def listen() -> None:
            async for event in client.events():
                events.put_nowait((event.workload_id, event.kind, time.perf_counter()))

        async def told(workload: str, kind: str) -> float:
            async with asyncio.timeout(_WITHIN_S):
                while (one := await events.get())[:2] != (workload, kind):
                    pass
                return one[2]

        listener = asyncio.create_task(listen())
        await asyncio.sleep(1.0)
        for number in range(count + 1):
            began = time.perf_counter()
            made = (await connection.json("POST", "/workloads", _LASTS))["workload"]["id"]
            taken = await told(made, "running") - began
            await told(made, "ended")
            await asyncio.sleep(random.uniform(*_PAUSE_S))
            if number == 0:  # the first one warms up, and is the template
                template = await cluster.template()
                continue
            ours.append(taken)
            began = time.perf_counter()
            uid = (await cluster.create(PODS, pod(f"bare-{number}", template)))["metadata"]["uid"]
            bare.append(await pods.until_ended(uid) - began)
            await asyncio.sleep(random.uniform(*_PAUSE_S))
        listener.cancel()
    await cluster.clear()
    return starts_figures(ours, bare)


def starts_figures(ours: list[float], bare: list[float]) -> list[Figure]:
    """From the seconds of each."""
    how = f"until the event arrives, {len(ours)} jobs; baseline: the same Pod, created and watched by the API"
    return [
        Figure("submit to running, p50", median(ours), "s", how, median(bare)),
        Figure("submit to running, p95", percentile(ours, 0.95), "s", "the same", percentile(bare, 0.95)),
        Figure("submit to running, longer by", median(ours) - median(bare), "s", "of the medians; aim: at most 0.5"),
    ]
