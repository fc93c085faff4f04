"""`faults`: a day of faults on a control plane and two appliances. Counts lost, duplicated and leaked objects."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click

from benchmarks.faults.audit import Findings, audit, compare_rest, rest_of
from benchmarks.faults.day import Day
from benchmarks.faults.jobs import LABEL, jobs
from benchmarks.faults.place import URL, Place, enter_namespaces, new_place, processes, remove, until
from benchmarks.faults.schedule import SITES, FaultKind, schedule
from benchmarks.report import BenchmarkError, Figure, as_json, node, progress, show
from commonage.sdk import ApiError, AsyncClient

_DAY_S, _SHORT_DAY_S = 1440.0, 60.0
_JOBS_PER_S = 1.2
_STARTED_WITHIN_S, _ENDED_WITHIN_S = 300.0, 10.0
Left = TypeVar("Left", list[str], dict[int, str])


@click.command
@click.option("--seed", type=int, default=1, show_default=True, help="Determines all faults, jobs and their moments.")
@click.option("--short", is_flag=True, help="A day of one minute instead of 24 minutes.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Write logs and notes to this folder.")
@as_json
def faults(seed: int, short: bool, keep: Path | None, as_json: bool) -> None:
    """One day of faults; exit code 1 if anything was lost, doubled or leaked.

    A control plane and two appliances run as processes, and a proxy spoils the line of each appliance. A minute of the
    day lasts a second. Needs root, or user namespaces: disks, network and processes are its own.

    \b
    Example:
      python -m benchmarks faults --seed 7 --short
    """
    if (code := enter_namespaces(sys.argv[2:])) is not None:
        sys.exit(code)
    folder = keep or Path(tempfile.mkdtemp(prefix="commonage-faults-"))
    folder.mkdir(exist_ok=True)
    try:
        day, findings = asyncio.run(_run(folder, seed, _SHORT_DAY_S if short else _DAY_S))
    finally:
        if keep is None:
            remove(folder)
    click.echo(_text(seed, day, findings, as_json=as_json))
    sys.exit(1 if findings.all else 0)


async def _run(folder: Path, seed: int, day_s: float) -> tuple[Day, Findings]:
    place = new_place(folder)
    try:
        await _start(place)
        async with AsyncClient(URL, place.token, reconnect_timeout_s=300) as client:
            before = rest_of(place)
            day = Day(place, schedule(seed, day_s), jobs(seed, day_s, _JOBS_PER_S))
            await day.run(client)
            progress("comparing")
            findings = await audit(day, client)
            await compare_rest(findings, place, client, before)
        for server in (*place.agents.values(), place.control):
            await server.end(signal.SIGTERM)
        own = {one.pid for one in place.networks.values()}
        left = await _left(lambda: {pid: what for pid, what in processes().items() if pid not in own})
        findings.leaked += [f"process {pid} is left: {what}" for pid, what in left.items()]
        for line in place.lines.values():
            await line.close()
        findings.leaked += [f"a program still listens at {one}" for one in await _left(place.listeners)]
        return day, findings
    finally:
        for server in place.servers:
            if server.process is not None and server.process.poll() is None:
                server.process.kill()
            server.keep_logs()
        for network in place.networks.values():
            network.remove()


async def _left(look: Callable[[], Left]) -> Left:
    """The things that are still there after a moment: the last of them may just be ending."""
    give_up = time.monotonic() + _ENDED_WITHIN_S
    while (left := look()) and time.monotonic() < give_up:
        await asyncio.sleep(0.1)
    return left


async def _start(place: Place) -> None:
    progress("starting the control plane and two appliances")
    place.control.start()
    await until(lambda: "ready after" in place.control.tail(), "its start", _STARTED_WITHIN_S, place.control)
    data = str(place.control.data)
    place.token = await place.run("token", "--user", "admin", "--admin", "--data-dir", data, "--expires", "1d")
    for site in SITES:
        await place.join(site)
    async with AsyncClient(URL, place.token) as client, asyncio.timeout(_STARTED_WITHIN_S):
        while True:
            for server in place.servers:
                server.check()
            try:
                ready = [
                    one for one in await client.nodes() if one.state == "ready" and LABEL.items() <= one.labels.items()
                ]
            except ApiError as error:
                raise BenchmarkError(f"the control plane does not answer: {error}") from error
            if len(ready) == len(SITES):
                return
            await asyncio.sleep(0.2)


def _text(seed: int, day: Day, findings: Findings, *, as_json: bool) -> str:
    how = f"seed {seed}"
    figures = [
        Figure("jobs", len(day.jobs), "", f"{how}; each notes itself that it ran"),
        Figure("attempts", findings.attempts, "", "as the platform records them"),
        Figure("lines of logs", findings.lines, "", "each compared"),
        Figure("events", len(day.events), "", "followed by a client through all faults"),
        *(Figure(f"{kind.value}", day.done[kind], "", "faults") for kind in FaultKind),
        Figure("lost", len(findings.lost), "", "must be 0"),
        Figure("doubled", len(findings.doubled), "", "must be 0"),
        Figure("leaked", len(findings.leaked), "", "must be 0"),
    ]
    title = "A day of faults"
    if as_json:
        found = {"lost": findings.lost, "doubled": findings.doubled, "leaked": findings.leaked}
        shown = [asdict(one) for one in figures]
        return json.dumps({"title": title, "node": node(), "seed": seed, "figures": shown, "findings": found}, indent=2)
    return "\n".join([show(title, figures, as_json=False), *(f"\n{one}" for one in findings.all)])
