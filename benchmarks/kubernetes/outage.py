"""The API server is out of our reach while jobs start, run, end, are submitted and are stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.connection import Connection
from benchmarks.kubernetes.cluster import Cluster, Seen, proxied, until
from benchmarks.kubernetes.findings import Findings
from benchmarks.report import Figure, progress
from benchmarks.server import Served
from commonage.sdk import AsyncClient
from commonage.wire.workloads import TERMINAL_STATES, WorkloadOut

_SCRIPT = 'i=0; while [ "$i" -lt "$COUNT" ]; do echo "line $i"; i=$((i+1)); sleep 1; done'
_FEW_LINES = 5
_WITHIN_S = 300.0


@dataclass
class Job:
    """Prints a line each second. `stopped`: its owner stops it before it has printed them all."""

    name: str
    lines: int
    stopped: bool = False
    id: str = ""

    def body(self) -> dict[str, Any]:
        command = ["/bin/sh", "-c", _SCRIPT]
        variables = {"COUNT": str(self.lines)}
        return {
            "kind": "job", "name": self.name, "key": self.name, "command": command, "variables": variables,
            "cpus": "20m", "memory_mib": 16,
        }  # fmt: skip


@dataclass
class Mix:
    """`each` jobs of each kind, for an outage of this many seconds."""

    seconds: float
    each: int
    end_meanwhile: list[Job] = field(init=False)
    end_later: list[Job] = field(init=False)
    stopped: list[Job] = field(init=False)
    begin_then: list[Job] = field(init=False)
    submitted: list[Job] = field(init=False)

    def __post_init__(self) -> None:
        def some(name: str, lines: float, *, stopped: bool = False) -> list[Job]:
            return [Job(f"{name}-{number}", round(lines), stopped) for number in range(self.each)]

        self.end_meanwhile = some("ends-meanwhile", self.seconds / 2)
        self.end_later = some("ends-later", self.seconds * 1.5)
        self.stopped = some("stopped", self.seconds * 10, stopped=True)
        self.begin_then = some("starts-then", _FEW_LINES)
        self.submitted = some("submitted", _FEW_LINES)

    @property
    def all(self) -> list[Job]:
        return [*self.end_meanwhile, *self.end_later, *self.stopped, *self.begin_then, *self.submitted]


async def outage(cluster: Cluster, seconds: float, each: int, findings: Findings) -> list[Figure]:
    mix = Mix(seconds, each)
    async with (
        proxied(cluster) as (proxy, kubeconfig),
        cluster.server(kubeconfig=kubeconfig) as served,
        AsyncClient(served.url, served.token) as client,
        cluster.pods().following() as pods,
    ):
        early = [*mix.end_meanwhile, *mix.end_later, *mix.stopped]
        progress(f"{len(early)} jobs start")
        await _submit(served, early)
        first = {job.id for job in early}
        await pods.until(lambda: first <= _started(pods.seen.values()).keys(), "the jobs start", _WITHIN_S)
        progress(f"the API server is out of reach for {seconds:.0f} s")
        await _submit(served, mix.begin_then)
        proxy.faults.silent = True
        await asyncio.sleep(seconds / 2)
        await _submit(served, mix.submitted)
        for job in mix.stopped:
            await client.stop(job.id, "its owner stops it")
        proxy.faults.refuses = True
        proxy.cut()
        await asyncio.sleep(seconds / 2)
        proxy.faults.silent = proxy.faults.refuses = False
        proxy.cut()
        back = time.perf_counter()
        last = {job.id for job in mix.submitted}
        await pods.until(lambda: last <= _started(pods.seen.values()).keys(), "the jobs of the outage start", _WITHIN_S)
        delay = max(min(one.started_at or 0 for one in pods.seen.values() if one.workload == id) for id in last) - back
        progress("all jobs end")
        known: dict[str, WorkloadOut] = {}

        async def ended() -> bool:
            known.update({one.id: one async for one in client.workloads()})
            return all(one.state in TERMINAL_STATES for one in known.values())

        await until(ended, "all jobs have ended", seconds * 1.5 + _WITHIN_S)
        await _compare(findings, client, mix.all, known, pods.seen.values())
    how = f"{len(mix.all)} jobs; silent for half of {seconds:.0f} s, then refused; "
    return [
        Figure("lost by the outage", len(findings.lost), "", f"{how}jobs, exit codes, lines of logs; must be 0"),
        Figure("doubled by the outage", len(findings.doubled), "", f"{how}Pods that ran; must be 0"),
        Figure("after the outage, all jobs of it have started", delay, "s", "those that were submitted meanwhile"),
    ]


async def _submit(served: Served, jobs: Sequence[Job]) -> None:
    async with Connection(served.url, served.token) as connection:
        for job in jobs:
            job.id = (await connection.json("POST", "/workloads", job.body()))["workload"]["id"]


def _started(pods: Collection[Seen]) -> dict[str, int]:
    """How many Pods of each workload started."""
    found: dict[str, int] = {}
    for one in pods:
        if one.started_at is not None:
            found[one.workload] = found.get(one.workload, 0) + 1
    return found


async def _compare(
    findings: Findings, client: AsyncClient, jobs: Sequence[Job], known: dict[str, WorkloadOut], pods: Collection[Seen]
) -> None:
    started = _started(pods)
    for job in jobs:
        name, runs = f"{job.name} ({job.id})", started.get(job.id, 0)
        workload = known.pop(job.id, None)
        if workload is None:
            findings.lost.append(f"{name}: the platform does not know it")
            continue
        how = f"{workload.state}, exit code {workload.exit_code}: {workload.reason.message}"
        if runs > 1:
            findings.doubled.append(f"{name} ran in {runs} Pods: {how}")
        if job.stopped:
            if workload.state != "stopped":
                findings.lost.append(f"{name} should have been stopped: {how}")
            continue
        if runs == 0:
            findings.lost.append(f"{name} ran in no Pod: {how}")
        if (workload.state, workload.exit_code) != ("succeeded", 0):
            findings.lost.append(f"{name} should have succeeded: {how}")
        printed = [line.text async for line in client.logs(job.id)]
        if why := difference(printed, job.lines):
            (findings.doubled if len(printed) > job.lines else findings.lost).append(f"{name}: its log has {why}")
    findings.doubled += [f"{one.name} ({one.id}) was submitted once and is there twice" for one in known.values()]


def difference(printed: Sequence[str], lines: int) -> str:
    """The fault of a job's log; empty if it has each line once and in order."""
    wanted = [f"line {number}" for number in range(lines)]
    if list(printed) == wanted:
        return ""
    at = next((at for at, one in enumerate(wanted) if printed[at : at + 1] != [one]), lines)
    return f"{len(printed)} lines instead of {lines}; the first difference is {list(printed[at : at + 3])} at {at}"
