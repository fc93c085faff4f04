"""Commonage's containers without the Docker daemon: found in its files, ended and paused with the kernel.

The daemon's files say which containers are Commonage's, and the control groups which processes belong to them.
Everything here blocks: call it in threads.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.agent.containers.containers import LABEL

_CONTAINER = re.compile(rb"[0-9a-f]{64}")
_NEVER = "0001-"
_RETRY_S = 0.05
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A container as the daemon's files describe it. `ran`: it had not ended when they were written."""

    id: str
    attempt_id: str
    ran: bool


def on_disk(root: Path) -> list[OnDisk]:
    """All Commonage containers in this daemon folder, without asking the daemon.

    Raises OSError if it cannot be read.
    """
    containers = []
    for folder in (root / "containers").iterdir():
        with suppress(OSError, ValueError, KeyError, TypeError):  # being created or removed at this moment
            about = json.loads((folder / "config.v2.json").read_bytes())
            attempt = (about["Config"]["Labels"] or {}).get(LABEL)
            if attempt:
                state = about["State"]
                ran = bool(state["Running"]) or str(state.get("FinishedAt", "")).startswith(_NEVER)
                containers.append(OnDisk(folder.name, str(attempt), ran))
    return containers


def end_processes(
    containers: Collection[str], timeout_s: float, wake: Callable[[Collection[str]], None] = lambda _: None
) -> set[str]:
    """Kill all processes of these containers, repeatedly. Returns the containers that still have one.

    `wake` ends the pause of containers: a paused container does not die, and once killed it only dies.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        alive = processes_of(containers)
        if not alive or time.monotonic() > deadline:
            return set(alive.values())
        # SIGSTOP first: a program continues if its child is killed before it, and may end with exit code 0.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in alive:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        wake(set(alive.values()))
        time.sleep(_RETRY_S)


def processes_of(containers: Collection[str]) -> dict[int, str]:
    """The processes of these containers, each with its container, by their control groups."""
    wanted = {one.encode(): one for one in containers}
    owners: dict[int, str] = {}
    for entry in os.scandir("/proc") if wanted else ():
        if not entry.name.isdigit():
            continue
        try:
            groups = Path(entry.path, "cgroup").read_bytes()
            owner = next((wanted[one] for one in _CONTAINER.findall(groups) if one in wanted), None)
            if owner is None:
                continue
            stat = Path(entry.path, "stat").read_bytes()
            # A zombie still lists its groups, but does nothing any more.
            if stat[stat.rindex(b")") + 2 :][:1] not in (b"Z", b"X"):
                owners[int(entry.name)] = owner
        except OSError:
            continue
    return owners


@dataclass(frozen=True, slots=True)
class Freezer:
    """The freezer of a container: the file that is written, and the values that pause and resume."""

    file: Path
    paused: str
    running: str

    def set_paused(self, paused: bool) -> bool:
        """Pause the container or let it continue; False if that failed.

        A system call in progress is completed first.
        """
        try:
            self.file.write_text(self.paused if paused else self.running, encoding="ascii")
        except OSError:
            return False
        return True


def pause(containers: Collection[str]) -> dict[str, bool]:
    """Pause the containers that have processes, including processes to come; returns for each whether it is paused."""
    return {container: _set_paused(pid, container, True) for container, pid in _processes(containers).items()}


def unpause(containers: Collection[str]) -> None:
    """End the pause of those that are paused."""
    for container, pid in _processes(containers).items():
        _set_paused(pid, container, False)


def _processes(containers: Collection[str]) -> dict[str, int]:
    """One process of each of these containers that has any."""
    return {container: pid for pid, container in processes_of(containers).items()}


def _set_paused(pid: int, container: str, paused: bool) -> bool:
    with suppress(OSError):  # it has just ended
        freezer = freezer_of(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"), container)
        return freezer is not None and freezer.set_paused(paused)
    return True


def freezer_of(groups: str, container: str, mounted: Path = _GROUPS) -> Freezer | None:
    """The freezer of a container, by the control groups of one of its processes; None without a freezer."""
    paths = {kinds: path for _, kinds, path in (line.split(":", 2) for line in groups.splitlines())}
    for kinds, folder, file, paused, running in (
        ("freezer", mounted / "freezer", "freezer.state", "FROZEN", "THAWED"),
        ("", mounted, "cgroup.freeze", "1", "0"),
    ):
        steps = paths.get(kinds, "").split("/")
        depth = next((at for at, step in enumerate(steps, start=1) if container in step), 0)
        place = folder.joinpath(*steps[1:depth], file)
        if depth and place.is_file():
            return Freezer(place, paused, running)
    return None
