"""`class`: a tutorial day. Students of a class work on a Swarm over HTTPS, material is pushed, and a worker dies."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from os import environ
from pathlib import Path
from typing import Any

import aiohttp
import click
from aiohttp.abc import AbstractResolver, ResolveResult

from benchmarks.classroom.platform import Platform
from benchmarks.classroom.school import DOMAIN, PASSWORD, SHARE_GIB, WORKERS, School, school
from benchmarks.classroom.student import CLASS, LESSON, MATERIAL, NEXT_LESSON, Gate, Student, Times
from benchmarks.report import BenchmarkError, Figure, as_json, node, percentile, progress, show
from benchmarks.server import command
from commonage.sdk import AsyncClient

_FIRST, _SECOND, _NEXT = "print('first')\n", "print('second')\n", "print('next week')\n"
_SEAT = ("--gpus", f"{SHARE_GIB}GiB", "--cpus", "0.05", "--mem", "640MiB")
_READY_WITHIN_S = 900.0
_REQUEST_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of students, the seconds over which they arrive, and the number of cells per student and part of the
    day.
    """

    students: int
    arrive_s: float
    cells: int

    @property
    def names(self) -> list[str]:
        return [f"student{number:02}" for number in range(1, self.students + 1)]


@dataclass
class Day:
    """The figures and the errors of a day."""

    times: Times = field(default_factory=Times)
    first_ready_s: float = 0.0
    ready_s: float = 0.0
    signed_in_s: float = 0.0
    lost_students: int = 0
    steps: int = 0
    cores: dict[str, float] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@click.command("class")
@click.option("--students", type=click.IntRange(2, 50), default=50, show_default=True, help="Students of the class.")
@click.option(
    "--cells", type=click.IntRange(1), default=20, show_default=True, help="Cells of each, three times a day."
)
@click.option("--short", is_flag=True, help="Ten students and five cells, who arrive within ten seconds.")
@as_json
def classroom(students: int, cells: int, short: bool, as_json: bool) -> None:
    """A tutorial day on a Swarm of three workers; exit code 1 if anything failed or any work was lost.

    Students sign in over HTTPS, compute, open TensorBoard, get new material, restart, and reset. Then a worker loses
    its power. It needs root, docker.io, iptables, buildah and git; the Swarm is made of network namespaces here.

    \b
    Example:
      sudo .venv/bin/python -m benchmarks class
      sudo .venv/bin/python -m benchmarks class --short
    """
    plan = Plan(10, 10.0, 5) if short else Plan(students, 90.0, cells)
    with school(plan.students) as made:
        day = asyncio.run(_day(made, plan))
        if day.errors or day.lost:
            progress("the server's last warnings:\n" + _warnings(made.folder / "bench-server.log"))
    click.echo(_text(plan, day, as_json=as_json))
    sys.exit(1 if day.errors or day.lost else 0)


def _warnings(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join([line[:500] for line in lines if " warning: " in line or " error: " in line][-30:])


async def _day(made: School, plan: Plan) -> Day:
    day = Day()
    async with AsyncClient(made.served.url, made.served.token) as admin, AsyncExitStack() as leaving:
        first = await asyncio.to_thread(made.repository.push, {LESSON: _FIRST})
        await _declare(made, admin, plan, first)
        platform = Platform(made.served.pid)
        watching = asyncio.create_task(platform.watch())
        await _sessions_start(made, admin, plan, day)
        students = [
            Student(name, PASSWORD, f"https://{DOMAIN}", await leaving.enter_async_context(_browser(made)), day.times)
            for name in plan.names
        ]
        await _morning(students, plan, day)
        progress("material is pushed, and each restarts and resets")
        await asyncio.to_thread(made.repository.push, {LESSON: _SECOND, NEXT_LESSON: _NEXT})
        pushed_at = time.monotonic()
        await _each(students, lambda one: one.afternoon(pushed_at, _NEXT, _SECOND, plan.cells))
        await _evening(made, admin, students, plan, day)
        progress("comparing")
        await _each(students, lambda one: one.attempt(one.compare))
        day.lost = [lost for one in students for lost in one.lost]
        day.errors += [error for one in students for error in one.errors]
        day.steps = sum(one.steps for one in students)
        watching.cancel()
        day.cores, day.memory_mib = platform.cores(), platform.memory_mib
    return day


async def _each(students: Sequence[Student], part: Callable[[Student], Awaitable[None]]) -> None:
    await asyncio.gather(*(part(one) for one in students))


# --- before the class -------------------------------------------------------------------------------------------------


async def _declare(made: School, admin: AsyncClient, plan: Plan, commit: str) -> None:
    """The material by an admin; the class with a roster, as a teacher does it, so that sessions start at once."""
    progress("the material and the class")
    await admin.put_resource("Volume", MATERIAL, {"material": {"repository": made.repository.url}})
    await _until(lambda: _has_material(admin, commit), "the material")
    roster = made.folder / "students.csv"
    roster.write_text("user\n" + "".join(f"{name}\n" for name in plan.names))
    starts = datetime.now(UTC) + timedelta(minutes=5)
    meeting = ("--from", f"{starts:%Y-%m-%d %H:%M}", "--until", f"{starts + timedelta(hours=3):%Y-%m-%d %H:%M}")
    argv = [*command(), "class", "set", CLASS, "--roster", str(roster), *_SEAT, *meeting, "--time-zone", "UTC"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*argv, "--tenant", "commons", "--material", MATERIAL, "--ahead", "15m"],
        env={**environ, "COMMONAGE_URL": made.served.url, "COMMONAGE_TOKEN": made.served.token},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"the class is refused: {done.stderr or done.stdout}")


async def _has_material(admin: AsyncClient, commit: str) -> bool:
    return (await admin.material(MATERIAL)).commit == commit


async def _sessions_start(made: School, admin: AsyncClient, plan: Plan, day: Day) -> None:
    progress(f"{plan.students} sessions start before the class")
    began = time.monotonic()

    async def all_run() -> bool:
        running = await asyncio.to_thread(_ready_servers, made)
        if running and not day.first_ready_s:
            day.first_ready_s = time.monotonic() - began
        return running == plan.students

    try:
        await _until(all_run, "all sessions are ready")
    except BenchmarkError as error:
        seats = [f"{one.student}: {one.state} {one.reason.message}" for one in (await admin.one_class(CLASS)).seats]
        raise BenchmarkError(f"{error}: {seats}") from None
    day.ready_s = time.monotonic() - began


def _ready_servers(made: School) -> int:
    """Sessions to which the hub lets their students."""
    secret = (made.folder / "data/secrets/hub_service_token").read_text().strip()
    asked = urllib.request.Request(
        f"{made.served.url}/hub/api/users?limit=200", headers={"Authorization": f"token {secret}"}
    )
    with urllib.request.urlopen(asked, timeout=_REQUEST_S) as answer:
        return sum(one["servers"].get(CLASS, {}).get("ready", False) for one in json.load(answer))


async def _sessions(admin: AsyncClient) -> list[Any]:
    return [one async for one in admin.workloads(kind="session", state=["running"])]


async def _until(reached: Callable[[], Awaitable[bool]], what: str) -> None:
    give_up = time.monotonic() + _READY_WITHIN_S
    while not await reached():
        if time.monotonic() > give_up:
            raise BenchmarkError(f"not within {_READY_WITHIN_S:.0f} s: {what}")
        await asyncio.sleep(0.5)


# --- the class --------------------------------------------------------------------------------------------------------


class _Names(AbstractResolver):
    """Leads every name to the edge."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            {"hostname": host, "host": self._address, "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}
        ]

    async def close(self) -> None: ...


def _browser(made: School) -> aiohttp.ClientSession:
    """With cookies and connections of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=_Names(made.address), ssl=made.trusting),
        cookie_jar=aiohttp.CookieJar(quote_cookie=False),
        timeout=aiohttp.ClientTimeout(total=_REQUEST_S),
    )


async def _morning(students: Sequence[Student], plan: Plan, day: Day) -> None:
    progress("students sign in, compute, open TensorBoard and edit")
    chance = random.Random(1)
    arrivals = sorted(chance.uniform(0, plan.arrive_s) for _ in students)
    began = time.monotonic()

    async def one_morning(one: Student, arrives_s: float) -> None:
        await asyncio.sleep(arrives_s)
        await one.attempt(one.arrive)
        day.signed_in_s = time.monotonic() - began
        await one.morning(_FIRST, plan.cells)

    await asyncio.gather(*(one_morning(one, at) for one, at in zip(students, arrivals, strict=True)))


async def _evening(made: School, admin: AsyncClient, students: Sequence[Student], plan: Plan, day: Day) -> None:
    """The worker with most sessions dies while all compute."""
    nodes = {one.owner: str(one.node) for one in await _sessions(admin)}
    [(dies, _)] = Counter(nodes.values()).most_common(1)
    hit = [one for one in students if nodes.get(one.name) == dies]
    day.lost_students = len(hit)
    progress(f"{dies} loses its power, and with it the sessions of {len(hit)} students")
    at_work = Gate(len(students) + 1)
    power_cut: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    working = asyncio.create_task(
        _each(students, lambda one: one.evening(plan.cells, at_work, power_cut if one in hit else None))
    )
    await at_work.come()
    began = time.monotonic()
    await asyncio.to_thread(made.cut_power, dies)
    power_cut.set_result(began)
    await working
    after = {one.owner: str(one.node) for one in await _sessions(admin)}
    day.errors += [f"{one.name}: no session runs" for one in students if one.name not in after]
    day.errors += [f"{name}: its session is on {dies}, which is dead" for name, at in after.items() if at == dies]


# --- the report -------------------------------------------------------------------------------------------------------


def figures(plan: Plan, day: Day) -> list[Figure]:
    """In the order of the day."""
    times, each = day.times, f"{plan.students} students"
    found = [
        Figure("first session is ready", day.first_ready_s, "s", "after the class was created"),
        Figure("all sessions are ready", day.ready_s, "s", "the same; before a student signs in"),
        Figure("all are signed in", day.signed_in_s, "s", f"they come within {plan.arrive_s:.0f} s; aim: 120 s"),
        *_spread("sign-in", times.sign_in, "s", f"from the class link to the portal's answer; {each}"),
        *_spread("password to JupyterLab", times.to_lab, "s", "from the form to the page of the session; aim: 2 s"),
        *_spread("new kernel, first cell", times.first_cell, "s", f"{len(times.first_cell)} kernels"),
        *_spread("cell", [one * 1000 for one in times.cell], "ms", f"{len(times.cell)}, each writes a file and syncs"),
        *_spread("TensorBoard opens", times.tensorboard, "s", "its process starts; page and data"),
        Figure("TensorBoard is reloaded", times.reloads, "times", "it did not start in time"),
        *_spread("material arrives", times.material, "s", "from the end of the push to the student's copy; poll: 30 s"),
        *_spread("restart", times.restart, "s", "from Stop to the page of the new session"),
        *_spread(
            "working again", times.again, "s", f"{day.lost_students} students of the dead worker: a cell computed"
        ),
        Figure("errors", len(day.errors), "", "steps that failed; must be 0"),
        Figure("work lost", len(day.lost), "", f"of {day.steps} files; must be 0"),
    ]
    for part, cores in day.cores.items():
        found.append(Figure(f"{part}, CPU", cores, "cores", "mean over the day"))
        found.append(Figure(f"{part}, memory", day.memory_mib[part], "MiB", "resident, the most"))
    return found


def _spread(name: str, values: Sequence[float], unit: str, how: str) -> list[Figure]:
    if not values:
        return []
    return [
        Figure(f"{name}, p50", percentile(values, 0.5), unit, how),
        Figure(f"{name}, p95", percentile(values, 0.95), unit, "the same"),
    ]


def _text(plan: Plan, day: Day, *, as_json: bool) -> str:
    title = f"A class of {plan.students} on a Swarm of {WORKERS} workers"
    shown = figures(plan, day)
    if as_json:
        found = {"errors": day.errors, "lost": day.lost}
        about = {"title": title, "node": node(), "figures": [asdict(one) for one in shown], "findings": found}
        return json.dumps(about, indent=2)
    return "\n".join([show(title, shown, as_json=False), *(f"\n{one}" for one in (*day.errors, *day.lost))])
