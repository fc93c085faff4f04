"""A queue of short jobs, and a Kubernetes Job with as many of the same Pods and the same parallelism."""

from __future__ import annotations

import time

from benchmarks.control.control import through
from benchmarks.kubernetes.cluster import JOBS, Cluster, until
from benchmarks.kubernetes.starts import SHORT_JOB
from benchmarks.report import BenchmarkError, Figure, progress
from benchmarks.server import Served

_COMMAND = ["/bin/sh", "-c", "true"]
_CLIENTS = 10
_WITHIN_S = 3600.0


async def queue(cluster: Cluster, served: Served, count: int) -> list[Figure]:
    progress(f"{count} short jobs")
    body = {**SHORT_JOB, "command": _COMMAND}
    await through(served, [body], 1)
    template = await cluster.template()
    cpu_s = served.cpu_s
    async with cluster.pods().following() as pods:
        _, ours = await through(served, [body] * count, _CLIENTS)
        parallel = pods.most_live
    cpu_s = served.cpu_s - cpu_s
    await cluster.clear()
    progress(f"a Kubernetes Job with {count} completions and a parallelism of {parallel}")
    bare = await _job(cluster, {**template, "restartPolicy": "Never"}, count, parallel)
    await cluster.clear()
    return [
        *queue_figures(count, ours, bare, parallel),
        Figure("control plane's CPU for a short job", cpu_s / count * 1000, "ms", "of its process, in the same run"),
    ]


def queue_figures(count: int, ours: float, bare: float, parallel: int) -> list[Figure]:
    """From the seconds for all."""
    how = f"{count} jobs, submitted one by one; first submit to last end; at most {parallel} Pods at once"
    return [
        Figure("short jobs", count / ours, "jobs/s", f"{how}; baseline: a Job of that parallelism", count / bare),
        Figure("short jobs, share of the baseline's rate", bare / ours, "", "aim: 0.9 or more"),
    ]


async def _job(cluster: Cluster, template: dict[str, object], count: int, parallel: int) -> float:
    spec = {"completions": count, "parallelism": parallel, "template": {"spec": template}}
    began = time.perf_counter()
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bare"}, "spec": spec}
    await cluster.create(JOBS, manifest)

    async def is_done() -> bool:
        status = (await cluster.client.get(JOBS.path(cluster.name, "bare"))).get("status") or {}
        if status.get("failed"):
            raise BenchmarkError(f"a Pod of the Kubernetes Job failed: {status}")
        return int(status.get("succeeded", 0)) == count

    await until(is_done, "the Kubernetes Job completes", _WITHIN_S)
    return time.perf_counter() - began
