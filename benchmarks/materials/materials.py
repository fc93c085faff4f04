"""`materials`: a large repository of course files: its first sync, copies in the homes of sessions, and a push.

The repository is behind a `git daemon` on this machine, and its content cannot be compressed. The sessions are real
ones of the process engine. A copy counts once the platform has noted in the home that it is complete.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx2
from tests.integration.git_server import PushedRepository, git_server

from benchmarks.report import BenchmarkError, Figure, as_json, progress, show
from benchmarks.server import Served, make_environment, server
from commonage.sdk import ApiError, Client

_NAME = "course"
_MIB = 1024 * 1024
_WITHIN_S = 900.0
_LOOK_S = 0.05
_SESSION = {"environment": "notebook", "cpus": "0.1", "memory": "256MiB"}


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of the repository and of the push in MiB, files of the repository, and sessions."""

    mib: int
    files: int
    push_mib: int
    sessions: int

    @property
    def users(self) -> list[str]:
        return [f"student{number}" for number in range(1, self.sessions + 1)]


@click.command
@click.option("--mib", type=click.IntRange(1), default=1024, show_default=True, help="Size of the repository in MiB.")
@click.option("--files", type=click.IntRange(1), default=200, show_default=True, help="Files of the repository.")
@click.option("--push-mib", type=click.IntRange(1), default=200, show_default=True, help="Changed in the push, in MiB.")
@click.option("--sessions", type=click.IntRange(1, 50), default=5, show_default=True, help="Sessions with a copy.")
@as_json
def materials(as_json: bool, **plan: int) -> None:
    """First sync, copies in homes, and a push of a large material. It needs git.

    \b
    Example:
      python -m benchmarks materials
      python -m benchmarks materials --mib 200 --files 50 --push-mib 40 --sessions 2
    """
    click.echo(show("Materials", measure(Plan(**plan)), as_json=as_json))


def measure(plan: Plan) -> list[Figure]:
    """Raises BenchmarkError."""
    with server("--gpus", "none") as served, Client(served.url, served.token) as admin:
        progress("making the environment of the sessions")
        make_environment(served)
        with git_server(served.folder / "git") as git:
            return _measure(plan, served, admin, git.repository(_NAME))


def _measure(plan: Plan, served: Served, admin: Client, repository: PushedRepository) -> list[Figure]:
    data, figures = served.folder / "data", []

    def figure(name: str, value: float, unit: str, how: str) -> None:
        figures.append(Figure(name, value, unit, how))

    progress(f"a repository of {plan.mib} MiB")
    _be_quick(repository)
    each = plan.mib * _MIB // plan.files
    first = repository.push({f"{number}.bin": os.urandom(each) for number in range(plan.files)})

    progress("its first sync")
    with _watching(served.pid) as first_git:
        began = time.monotonic()
        admin.put_resource("Volume", _NAME, {"always": True, "material": {"repository": repository.url, "poll": "1h"}})
        _until(lambda: _commit(admin) == first, "the first sync")
        figure("first sync", time.monotonic() - began, "s", "from the declaration until the version is in force")
    figure("memory of git", first_git.peak_mib, "MiB", "sum of the peaks of its processes, mapped files included")
    figure("disk", _disk_mib(data), "MiB", "repository and version")

    progress(f"{plan.sessions} sessions")
    began = time.monotonic()
    _start_sessions(plan, served)
    figure("copies", _until_copied(plan, data, first) - began, "s", f"until {plan.sessions} new homes are complete")
    _until(lambda: len(list(admin.workloads(kind="session", state=["running"]))) == plan.sessions, "all sessions run")

    progress(f"a push of {plan.push_mib} MiB")
    second = repository.push(dict(_changes(plan, each)))
    with _watching(served.pid) as second_git:
        began = time.monotonic()
        admin.sync_material(_NAME)
        _until(lambda: _commit(admin) == second, "the sync of the push")
        figure("push, in force", time.monotonic() - began, "s", "from the webhook until the version is in force")
        arrived = _until_copied(plan, data, second) - began
        figure("push, at the sessions", arrived, "s", f"until it is in {plan.sessions} homes of running sessions")
    figure("push, memory of git", second_git.peak_mib, "MiB", "as above")
    figure("push, disk", _disk_mib(data), "MiB", "repository and both versions")
    return figures


def _be_quick(repository: PushedRepository) -> None:
    """The work tree and the server spend no time on what cannot be compressed."""
    for name, value in {"core.compression": "0", "core.bigFileThreshold": "1m"}.items():
        repository.git("config", name, value)
        repository.git("--git-dir", str(repository.bare), "config", name, value)


def _changes(plan: Plan, each: int) -> Iterator[tuple[str, bytes]]:
    """Files that change, and new ones for what is left."""
    left, number = plan.push_mib * _MIB, 0
    while left > 0:
        size = min(each, left)
        yield f"{number}.bin", os.urandom(size)
        left, number = left - size, number + 1


def _commit(admin: Client) -> str | None:
    with suppress(ApiError):  # not declared yet
        found = admin.material(_NAME)
        if found.error is not None:
            raise BenchmarkError(found.error.message)
        return found.commit
    return None


def _start_sessions(plan: Plan, served: Served) -> None:
    secret = (served.folder / "data/secrets/hub_service_token").read_text().strip()
    with httpx2.Client(base_url=f"{served.url}/hub/api", headers={"Authorization": f"token {secret}"}) as hub:
        for user in plan.users:
            hub.post(f"/users/{user}", timeout=60)
            asked = hub.post(f"/users/{user}/server", json=_SESSION, timeout=60)
            if asked.status_code not in (201, 202):
                raise BenchmarkError(f"a session is refused: {asked.status_code} {asked.text[:300]}")


def _until_copied(plan: Plan, data: Path, commit: str) -> float:
    """When all homes have it."""
    states = [data / "workspaces" / user / ".commonage/materials" / _NAME / "state" for user in plan.users]
    _until(lambda: all(_state(one).get("commit") == commit for one in states), "the copies")
    return time.monotonic()


def _state(place: Path) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(place.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _until(reached: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + _WITHIN_S
    while not reached():
        if time.monotonic() > give_up:
            raise BenchmarkError(f"not within {_WITHIN_S:.0f} s: {what}")
        time.sleep(0.1)


def _disk_mib(data: Path) -> float:
    """MiB that the platform keeps of the material on disk, each file once."""
    out = subprocess.run(
        ["du", "--summarize", "--total", "--block-size=1", data / "materials", data / "repositories"],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(out.stdout.splitlines()[-1].split()[0]) / _MIB


@dataclass(slots=True)
class _Gits:
    """Memory of git processes that run together: the sum of their peaks."""

    peak_mib: float = 0.0


@contextmanager
def _watching(pid: int) -> Iterator[_Gits]:
    """Follow the peak memory of the git processes below `pid`."""
    found, ended = _Gits(), threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            now = sum(_peak_mib(one) for one, name in _below(pid) if name.startswith("git"))
            found.peak_mib = max(found.peak_mib, now)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def _below(pid: int) -> Iterator[tuple[int, str]]:
    """(process, name) of all processes below it."""
    for place in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in place.read_text().split():
                yield int(child), Path(f"/proc/{child}/comm").read_text().strip()
                yield from _below(int(child))


def _peak_mib(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
