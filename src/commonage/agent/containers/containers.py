"""Commonage's containers on this node, found with the Docker daemon or without it.

The daemon lists the running containers. Without it, its files say which containers are Commonage's, and the kernel
which processes belong to them, so that the agent can end them and report it. Everything here blocks: call it in
threads.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.agent.containers.docker import DockerDaemon

_log = logging.getLogger(__name__)
LABEL = "commonage.attempt"
CPUS_LABEL = "commonage.cpus-milli"
"""Label with the cores that an attempt requested, in thousandths, written by the Swarm engine. Sets the CPU weight."""
_CONTAINER = re.compile(rb"[0-9a-f]{64}")
_NEVER = "0001-"
_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Container:
    """A running container. `pid` is its first process; `cpus_milli` is 0 if it gets no CPU weight.

    `memory` (bytes; 0: no limit) is its memory limit, `memory_and_swap` the limit of both together, as the daemon says.
    """

    id: str
    attempt_id: str
    pid: int
    cpus_milli: int
    memory: int
    memory_and_swap: int


class Containers:
    """The running containers, as the daemon listed them last.

    `may_gain`: a program in one of them may gain privileges, because the daemon was not configured to forbid it. While
    none runs, it keeps the value of the containers that ran last.
    """

    def __init__(self, daemon: DockerDaemon) -> None:
        self._daemon = daemon
        self.running: Mapping[str, Container] = {}
        self.may_gain = False

    def set_daemon_default(self, may_gain: bool) -> None:
        """Take the daemon's own setting. Running containers are more reliable evidence."""
        self.may_gain = may_gain

    def refresh(self) -> None:
        """List the containers again. Raises EngineFailure."""
        listed = {str(one["Id"]): one for one in self._daemon.containers(LABEL)}
        new = [
            found for one in sorted(listed.keys() - self.running.keys()) if (found := self._describe(one)) is not None
        ]
        kept = {key: one for key, one in self.running.items() if key in listed}
        self.running = {**kept, **{one.id: one for one in new}}
        observed = {_gains_privileges(one.pid) for one in self.running.values()} - {None}
        self.may_gain = True in observed if observed else self.may_gain

    def _describe(self, container: str) -> Container | None:
        found = self._daemon.inspect(container)
        if found is None or not found["State"]["Pid"]:
            return None
        labels = found["Config"]["Labels"]
        cpus = str(labels.get(CPUS_LABEL, ""))
        cpus_milli = int(cpus) if cpus.isascii() and cpus.isdigit() else 0
        limits = found["HostConfig"]
        return Container(
            container,
            str(labels[LABEL]),
            int(found["State"]["Pid"]),
            cpus_milli,
            int(limits.get("Memory") or 0),
            int(limits.get("MemorySwap") or 0),
        )

    def of_attempts(self) -> dict[str, str]:
        return {one.id: one.attempt_id for one in self.running.values()}


def _gains_privileges(pid: int) -> bool | None:
    """Whether a process may gain privileges; None if it has ended."""
    try:
        return b"NoNewPrivs:\t0" in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None


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
    found = []
    for folder in (root / "containers").iterdir():
        with suppress(OSError, ValueError, KeyError, TypeError):  # being created or removed at this moment
            about = json.loads((folder / "config.v2.json").read_bytes())
            attempt = (about["Config"]["Labels"] or {}).get(LABEL)
            if attempt:
                state = about["State"]
                ran = bool(state["Running"]) or str(state.get("FinishedAt", "")).startswith(_NEVER)
                found.append(OnDisk(folder.name, str(attempt), ran))
    return found


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
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        wake(set(alive.values()))
        time.sleep(_RETRY_S)


def processes_of(containers: Collection[str]) -> dict[int, str]:
    """The processes of these containers, each with its container, by their control groups."""
    wanted = {one.encode(): one for one in containers}
    found: dict[int, str] = {}
    for entry in os.scandir("/proc") if wanted else ():
        if not entry.name.isdigit():
            continue
        try:
            groups = Path(entry.path, "cgroup").read_bytes()
            owner = next((wanted[one] for one in _CONTAINER.findall(groups) if one in wanted), None)
            # A zombie still lists its groups, but does nothing any more.
            if owner is not None and not _is_dead(Path(entry.path, "stat").read_bytes()):
                found[int(entry.name)] = owner
        except OSError:
            continue
    return found


def _is_dead(stat: bytes) -> bool:
    return stat[stat.rindex(b")") + 2 :][:1] in (b"Z", b"X")
