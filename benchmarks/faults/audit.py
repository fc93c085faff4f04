"""Comparison after the day: the jobs' own notes, the platform's records, and the remains at both ends."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.faults.day import Day
from benchmarks.faults.jobs import LABEL, Job, Noted, complete, read_journal
from benchmarks.faults.place import Place
from commonage.sdk import ApiError, AsyncClient
from commonage.server.sites import FOLDER
from commonage.wire.workloads import TERMINAL_STATES, AttemptOut, WorkloadOut

_QUIET_WITHIN_S = 180.0
_SENT = "the file that was sent along"
_MORE_DESCRIPTORS = 25
"""Of a server that just serves other connections than before."""


@dataclass
class Findings:
    """Each as a sentence."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    attempts: int = 0
    lines: int = 0

    @property
    def all(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.leaked]


async def audit(day: Day, client: AsyncClient) -> Findings:
    findings = Findings()
    workloads = {one.id: one async for one in client.workloads()}
    for job in day.jobs:
        workload = workloads.pop(day.submitted.get(job.key, ""), None)
        if workload is None:
            findings.lost.append(f"{job.key}: the platform does not know it")
            continue
        attempts = list(await client.attempts(workload.id))
        noted = read_journal(day.place.folder / "journal" / job.key)
        findings.attempts += len(attempts)
        _compare_runs(findings, job, workload, attempts, noted)
        await _compare_logs(findings, client, day, job, workload, noted)
    findings.doubled += [f"{one.name} ({one.id}) was submitted twice" for one in workloads.values()]
    _compare_events(findings, day)
    findings.lost += day.ended_by_itself
    return findings


# --- runs -------------------------------------------------------------------------------------------------------------


def _compare_runs(
    findings: Findings, job: Job, workload: WorkloadOut, attempts: list[AttemptOut], noted: Noted
) -> None:
    name = f"{job.key} ({workload.id}, {job.kind})"
    how = f"{workload.state}: {workload.reason.message}; attempts {[(one.number, one.state) for one in attempts]}"
    if workload.state not in TERMINAL_STATES:
        findings.lost.append(f"{name} has not ended: {how}")
        return
    for number, count in Counter(noted.starts).items():
        if count > 1:
            findings.doubled.append(f"{name}: attempt {number} ran {count} times")
    if unknown := set(noted.starts) - {one.number for one in attempts}:
        findings.lost.append(f"{name}: attempts {unknown} ran, and are not known")
    if job.stop_after_s is not None:
        _compare_stopped(findings, name, how, workload, noted)
    else:
        _compare_finished(findings, name, how, job, noted)
        if (workload.state, workload.exit_code) != ("failed" if job.exit_code else "succeeded", job.exit_code):
            findings.lost.append(f"{name} should have ended with {job.exit_code}: {how}")
        _compare_records(findings, name, job, attempts, noted)


def _compare_finished(findings: Findings, name: str, how: str, job: Job, noted: Noted) -> None:
    wanted = 1 + job.retries
    if len(noted.starts) != wanted or sorted(noted.ends) != sorted(noted.starts):
        which = findings.doubled if len(set(noted.starts)) > wanted else findings.lost
        which.append(f"{name} noted starts {noted.starts} and ends {noted.ends}, not {wanted} of each: {how}")


def _compare_records(findings: Findings, name: str, job: Job, attempts: list[AttemptOut], noted: Noted) -> None:
    for one in attempts:
        if one.number in noted.starts and (one.exit_code, one.started_at is None) != (job.exit_code, False):
            findings.lost.append(f"{name}: attempt {one.number} ran, its record says {one.state}, {one.exit_code}")
        if one.number not in noted.starts and one.exit_code is not None:
            findings.lost.append(f"{name}: attempt {one.number} did not run, its record says {one.exit_code}")


def _compare_stopped(findings: Findings, name: str, how: str, workload: WorkloadOut, noted: Noted) -> None:
    if len(noted.starts) > 1:
        findings.doubled.append(f"{name} noted starts {noted.starts}: {how}")
    if workload.state != "stopped":
        findings.lost.append(f"{name} should have been stopped: {how}")


# --- logs and events --------------------------------------------------------------------------------------------------


async def _compare_logs(
    findings: Findings, client: AsyncClient, day: Day, job: Job, workload: WorkloadOut, noted: Noted
) -> None:
    for attempt in noted.ends:
        try:
            printed = [line.text async for line in client.logs(workload.id, attempt=attempt)]
        except ApiError as error:
            findings.lost.append(f"{job.key}: the log of attempt {attempt} cannot be read: {error}")
            continue
        findings.lines += len(printed)
        if why := complete(printed, job, attempt, noted, _SENT):
            findings.lost.append(f"{job.key} ({workload.id}): the log of attempt {attempt} has {why}")
        followed = day.followed.get(job.key)
        if followed is not None and followed != printed:
            which = findings.doubled if len(followed) > len(printed) else findings.lost
            which.append(f"{job.key}: a client that followed its log read {len(followed)} of {len(printed)} lines")


def _compare_events(findings: Findings, day: Day) -> None:
    """Each event arrives once and in order, and the life of each workload has each of its steps once."""
    for before, after in pairwise(day.events):
        if after.seq <= before.seq:
            findings.doubled.append(f"event {after.seq} arrived after event {before.seq}")
    lives: dict[str, Counter[tuple[str, str | None]]] = {}
    for event in day.events:
        if event.workload_id:
            own = event.attempt_id if event.kind in ("starting", "running") else None
            lives.setdefault(event.workload_id, Counter())[(event.kind, own)] += 1
    stopped = {job.key for job in day.jobs if job.stop_after_s is not None}  # perhaps before it was known to run
    for key, workload_id in day.submitted.items():
        life = lives.get(workload_id, Counter())
        for kind in ("submitted", "ended"):
            if life[(kind, None)] == 0:
                findings.lost.append(f"{key} ({workload_id}): no event says {kind}")
        noted = read_journal(day.place.folder / "journal" / key)
        for number in noted.starts if key not in stopped else ():
            if life[("running", f"{workload_id}-{number}")] == 0:
                findings.lost.append(f"{key} ({workload_id}): no event says that attempt {number} runs")
        findings.doubled += [
            f"{key} ({workload_id}): {count} events say {kind} {attempt or ''}"
            for (kind, attempt), count in life.items()
            if count > 1 and kind in ("submitted", "ended", "starting", "running")
        ]


# --- what is left -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rest:
    """Open listeners and descriptors of the servers when nothing runs. After a restart some listen at other ports."""

    listeners: list[str]
    descriptors: dict[str, int]


def rest_of(place: Place) -> Rest:
    return Rest(place.listeners(), {one.name: one.descriptors for one in place.servers})


async def compare_rest(findings: Findings, place: Place, client: AsyncClient, before: Rest) -> None:
    """While all run: what is left becomes nothing within a while, or is a leak."""
    give_up = time.monotonic() + _QUIET_WITHIN_S
    while (left := await _left(place, client, before)) and time.monotonic() < give_up:
        await asyncio.sleep(0.5)
    findings.leaked += left


async def _left(place: Place, client: AsyncClient, before: Rest) -> list[str]:
    left = []
    for node in await client.nodes():
        if LABEL.items() <= node.labels.items():
            if node.state != "ready":
                left.append(f"{node.name} is {node.state}: {[one.message for one in node.reasons]}")
            if (node.free_cpus_milli, node.free_memory_mib) != (node.cpus_milli, node.memory_mib) or node.workloads:
                left.append(f"{node.name} has {node.workloads} allocations")
            left += [
                f"{node.name}: GPU {one.uuid} has {one.free_mib} of {one.memory_mib} MiB free"
                for one in node.devices
                if one.free_mib != one.memory_mib
            ]
    now = rest_of(place)
    if len(now.listeners) > len(before.listeners):
        left.append(f"{now.listeners} are listened at; before the day {before.listeners}")
    for name, count in now.descriptors.items():
        if count > before.descriptors[name] + _MORE_DESCRIPTORS:
            left.append(f"{name} has {count} descriptors open; {before.descriptors[name]} before the day")
    for site, agent in place.agents.items():
        left += _rows(agent.data / "site" / "site-agent.db", ("attempts", "samples"))
        left += _rows(place.control.data / FOLDER / f"{site}.db", ("statuses", "commands", "addresses"))
        left += _folders(agent.data)
    return left


def _rows(path: Path, tables: tuple[str, ...]) -> list[str]:
    found = []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database, suppress(sqlite3.OperationalError):
        for table in tables:
            if rows := database.execute(f"SELECT * FROM {table}").fetchall():
                found.append(f"{path} has {len(rows)} {table}: {str(rows)[:500]}")
    return found


def _folders(data: Path) -> list[str]:
    """Of attempts that were forgotten only the log is left, and of bundles nothing."""
    found = [f"{one} is left" for one in (data / "runs").iterdir() if one.name != ".old"]
    found += [
        f"{one} is left"
        for folder in (data / "runs" / ".old").iterdir()
        for one in folder.iterdir()
        if one.name != "log"
    ]
    return found + [f"{one} is left" for one in (data / "site" / "bundles").iterdir()]
