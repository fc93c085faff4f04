"""Many Pods on nodes that exist only in the API: what our control plane adds to what the cluster takes anyway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.connection import Connection
from benchmarks.kubernetes.cluster import Cluster, pod, until
from benchmarks.kubernetes.starts import SHORT_JOB
from benchmarks.report import Figure, progress
from benchmarks.server import Served
from commonage.engines.kubernetes.client import NODES, PODS
from commonage.sdk import AsyncClient

_CLIENTS = 10
_WITHIN_S = 1200.0
_REST_S = 20.0


async def fake_nodes(cluster: Cluster, key: str) -> int:
    """How many nodes have this label with the value `true`."""
    return len((await cluster.client.list_all(NODES.path(None), f"{key}=true")).items)


async def scale(cluster: Cluster, count: int, nodes: int, key: str) -> list[Figure]:
    """`key`: label and taint of those nodes."""
    async with (
        cluster.server(tolerations=key) as served,
        AsyncClient(served.url, served.token) as client,
        cluster.pods().following() as pods,
    ):

        async def ready() -> bool:
            found = [one for one in await client.nodes() if one.labels.get(key) == "true" and one.state == "ready"]
            return len(found) == nodes

        await until(ready, f"{nodes} nodes with the label {key}=true are ready", _WITHIN_S)
        progress(f"{count} jobs on {nodes} nodes that exist only in the API")
        before, began = served.cpu_s, time.perf_counter()
        body = {**SHORT_JOB, "command": ["sleep", "86400"], "cpus": "100m", "on": {key: "true"}, "array": count}
        async with Connection(served.url, served.token) as connection:
            made: list[str] = (await connection.json("POST", "/workloads", body))["ids"]

        async def all_run() -> bool:
            return (await client.info()).counts.get("running", 0) == count

        await until(all_run, "all jobs run", _WITHIN_S)
        ours, start_cpu_s = time.perf_counter() - began, served.cpu_s - before
        template = await cluster.template()
        before, began = served.cpu_s, time.perf_counter()
        await asyncio.sleep(_REST_S)
        rest = (served.cpu_s - before) / (time.perf_counter() - began)
        progress(f"{count} jobs are stopped")
        before = served.cpu_s
        await _stop(served, made)
        await pods.until(lambda: pods.count(lambda one: one.is_gone) >= count, "all Pods are gone", _WITHIN_S)
        stop_cpu_s = served.cpu_s - before
    progress(f"{count} Pods without us")
    bare = await _bare(cluster, {**template, "nodeSelector": {key: "true"}}, count)
    await cluster.clear()
    return scale_figures(count, ours, bare, start_cpu_s, stop_cpu_s, rest)


def scale_figures(
    count: int, ours: float, bare: float, start_cpu_s: float, stop_cpu_s: float, rest: float
) -> list[Figure]:
    """From the seconds until all run, and the control plane's CPU time; `rest`: cores while all run."""
    how = f"one array of {count}, until the last is started; baseline: {count} Pods from {_CLIENTS} clients"
    return [
        Figure(f"{count} Pods run", ours, "s", how, bare),
        Figure("added time for a Pod", (ours - bare) / count * 1000, "ms", "of the same; aim: below 50"),
        Figure("control plane's CPU for the start of a Pod", start_cpu_s / count * 1000, "ms", "aim: below 50"),
        Figure("control plane's CPU for the end of a Pod", stop_cpu_s / count * 1000, "ms", "all are stopped"),
        Figure("control plane, CPU at the start", start_cpu_s / ours, "cores", "aim: below 1"),
        Figure("control plane, CPU while all run", rest, "cores", f"over {_REST_S:.0f} s"),
    ]


async def _each(items: Sequence[str], work: Callable[[str], Awaitable[object]]) -> None:
    """From several clients at once."""
    waiting = list(items)

    async def one_client() -> None:
        while waiting:
            await work(waiting.pop())

    async with asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(one_client())


async def _stop(served: Served, workloads: Sequence[str]) -> None:
    async with AsyncClient(served.url, served.token) as client:
        await _each(workloads, lambda one: client.stop(one, "the benchmark is over"))


async def _bare(cluster: Cluster, template: dict[str, object], count: int) -> float:
    async with cluster.pods().following() as pods:
        began = time.perf_counter()
        names = [f"bare-{number}" for number in range(count)]
        await _each(names, lambda name: cluster.create(PODS, pod(name, template)))
        await pods.until(lambda: pods.count(lambda one: one.started_at is not None) == count, "all run", _WITHIN_S)
        return time.perf_counter() - began
