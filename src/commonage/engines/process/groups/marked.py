"""Processes of an attempt by the mark in their environment: used if there are no control groups.

Weaker in all ways, and reported as such: a process that clears its environment escapes, and the kernel does not limit
memory and CPU. Memory is the sum over the processes. Called in threads by the engine.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

from commonage.engines.process.groups.groups import Groups, Use
from commonage.engines.process.processes import Stat, send, stat_of

_MARK = b"COMMONAGE_ATTEMPT_ID="
_SHIM_MARK = b"shim.sh"
FRESH_S = 0.05
"""Seconds for which a scan of all processes is reused."""
_KILL_ROUNDS = 20
_KILL_PAUSE_S = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class _Known(NamedTuple):
    """A process when it was read: its attempt ("": none of ours), and whether it is the shim of it."""

    stat: Stat
    attempt: str
    is_shim: bool


class MarkedProcesses(Groups):
    """`Groups` without any help of the kernel."""

    limits_memory = False
    limits_cpu = False
    notes: tuple[str, ...] = (
        "There are no control groups here that we may use: memory is watched every few seconds instead of limited, "
        "CPU is counted but not held, and a process that clears its environment can outlive its workload.",
    )

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
                self._process_info()
            return [pid for pid, found in self._known.items() if found.attempt == attempt_id and not found.is_shim]

    def kill(self, attempt_id: str) -> bool:
        for _ in range(_KILL_ROUNDS):
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
        figures = [found for pid in pids if (found := _figures(pid))]
        if not figures:
            return None
        return Use(sum(cpu for cpu, _ in figures), sum(rss for _, rss in figures) // 1024**2, tuple(pids))

    def remove(self, attempt_id: str) -> bool:
        return not self.pids(attempt_id)

    def _process_info(self) -> None:
        """Scan all processes of the node; only new ones are read."""
        known: dict[int, _Known] = {}
        sessions: dict[int, str] = {}
        for entry in os.scandir("/proc"):
            pid = int(entry.name) if entry.name.isdigit() else 0
            stat = stat_of(pid) if pid else None
            if stat is None:
                continue
            before = self._known.get(pid)
            # A process between fork and exec still carries its parent's environment: only a mark found is final.
            found = before if before and before.stat == stat and before.attempt else _look_into(pid, stat)
            known[pid] = found
            if found.is_shim:
                sessions[stat.session] = found.attempt
        # A process that cleared its environment, but stayed in the session that its shim leads.
        for pid, found in known.items():
            if not found.attempt and found.stat.session in sessions:
                known[pid] = found._replace(attempt=sessions[found.stat.session])
        self._known = known
        self._looked_at = time.monotonic()


def mark_of(pid: int) -> str | None:
    """The attempt whose mark this process carries; None without one, if it is gone, or if it is another user's."""
    stat = stat_of(pid)
    return (_look_into(pid, stat).attempt or None) if stat is not None else None


def _look_into(pid: int, stat: Stat) -> _Known:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        start = 0 if environment.startswith(_MARK) else environment.find(b"\0" + _MARK) + 1
        if start == 0 and not environment.startswith(_MARK):
            return _Known(stat, "", False)
        is_shim = stat.session == pid and _SHIM_MARK in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # gone, or another user's
        return _Known(stat, "", False)
    attempt = environment[start + len(_MARK) :].partition(b"\0")[0].decode("ascii", "replace")
    return _Known(stat, attempt, is_shim)


def _figures(pid: int) -> tuple[float, int] | None:
    """CPU seconds and resident bytes of a process; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * _PAGE
