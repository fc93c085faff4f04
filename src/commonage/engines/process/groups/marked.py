"""Processes of an attempt by the mark in their environment, if there are no control groups; owners of processes.

Weaker in all ways, and reported as such: a process that clears its environment escapes, and the kernel does not limit
memory and CPU. Memory is the sum over the processes. Called in threads by the engine.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from commonage.domain.reasons import Reason
from commonage.domain.reasons.engines import ControlGroupsMissing
from commonage.domain.statuses import ProcessOwner
from commonage.engines.process.groups.groups import Groups, Use
from commonage.engines.process.processes import send
from commonage.engines.rundir.proc import ProcessInfo, process_info, variable_of
from commonage.engines.rundir.programs import ATTEMPT_MARK

_SHIM_MARK = b"shim.sh"
FRESH_S = 0.05
"""Seconds for which a scan of all processes is reused."""
_KILL_WITHIN_S = 2.0  # on a busy node a killed process waits for CPU time before it ends
_KILL_PAUSE_S = 0.02


class _Known(NamedTuple):
    """A process when it was read: its attempt ("": it belongs to none), and whether it is the shim of it."""

    began: int
    session: int
    attempt: str
    is_shim: bool


class MarkedProcesses(Groups):
    """`Groups` without any help of the kernel."""

    limits_memory = False
    limits_cpu = False
    notes: tuple[Reason, ...] = (ControlGroupsMissing(),)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_at = 0.0
        self._known: dict[int, _Known] = {}

    def make(self, attempt_id: str, cpus_milli: int, memory_mib: int) -> list[str]:
        return []

    def joins(self, attempt_id: str) -> list[str]:
        return []

    def pids(self, attempt_id: str) -> list[int]:
        with self._lock:
            if time.monotonic() - self._looked_at > FRESH_S:
                self._scan()
            return [pid for pid, found in self._known.items() if found.attempt == attempt_id and not found.is_shim]

    def kill(self, attempt_id: str) -> bool:
        give_up = time.monotonic() + _KILL_WITHIN_S
        while time.monotonic() < give_up:
            self._looked_at = 0.0
            pids = self.pids(attempt_id)
            if not pids:
                return True
            send(pids, signal.SIGKILL)
            time.sleep(_KILL_PAUSE_S)
        return False

    def was_oom(self, attempt_id: str) -> bool:
        """Always False: this is unknown here."""
        return False

    def use(self, attempt_id: str) -> Use | None:
        """Sum over its processes; memory that they share is counted once for each."""
        pids = self.pids(attempt_id)
        processes = [info for pid in pids if (info := process_info(pid))]
        if not processes:
            return None
        resident = sum(info.resident_bytes for info in processes)
        return Use(sum(info.cpu_s for info in processes), resident // 1024**2, tuple(pids))

    def remove(self, attempt_id: str) -> bool:
        return not self.pids(attempt_id)

    def _scan(self) -> None:
        """Scan all processes of the node; only new ones are read."""
        known: dict[int, _Known] = {}
        sessions: dict[int, str] = {}
        for entry in os.scandir("/proc"):
            pid = int(entry.name) if entry.name.isdigit() else 0
            info = process_info(pid) if pid else None
            if info is None:
                continue
            before = self._known.get(pid)
            # A process between fork and exec still carries its parent's environment: only a mark found is final.
            is_same = before and before.attempt and (before.began, before.session) == (info.began, info.session)
            found = before if before and is_same else _look_into(pid, info)
            known[pid] = found
            if found.is_shim:
                sessions[info.session] = found.attempt
        # A process that cleared its environment, but stayed in the session that its shim leads.
        for pid, found in known.items():
            if not found.attempt and found.session in sessions:
                known[pid] = found._replace(attempt=sessions[found.session])
        self._known = known
        self._looked_at = time.monotonic()


def _look_into(pid: int, info: ProcessInfo) -> _Known:
    attempt = variable_of(pid, ATTEMPT_MARK)
    try:
        is_shim = bool(attempt) and info.session == pid and _SHIM_MARK in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # gone, or another user's
        return _Known(info.began, info.session, "", False)
    return _Known(info.began, info.session, attempt, is_shim)


_MAX_ANCESTORS = 64


def owners_of(pids: Collection[int], groups: Groups, attempts: Iterable[str]) -> list[ProcessOwner]:
    """Owners of the processes that still run, by pid; `attempts` are all attempts that run here.

    First the attempt's grouping is used (its control groups, or the mark in the environment); then descent from a
    process of an attempt; last the mark, which also a process carries that moved out of its group.
    """
    held = {pid: attempt for attempt in attempts for pid in groups.pids(attempt)} if pids else {}
    found = []
    for pid in sorted(set(pids)):
        info = process_info(pid)
        if info is not None:
            owner = held.get(pid) or _of_ancestor(info.parent, held) or variable_of(pid, ATTEMPT_MARK) or None
            found.append(ProcessOwner(pid, owner, info.name, info.started_at))
    return found


def _of_ancestor(pid: int, held: dict[int, str]) -> str | None:
    for _ in range(_MAX_ANCESTORS):
        if pid <= 1:
            return None
        if pid in held:
            return held[pid]
        info = process_info(pid)
        if info is None:
            return None
        pid = info.parent
    return None
