"""Owner of a process of this node: an attempt, or unknown. Called in a thread by the engine.

First the attempt's grouping is used (its control groups, or the mark in the environment); then descent from a process
of an attempt; last the mark, which also a process carries that moved out of its group.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from commonage.domain.statuses import ProcessOwner
from commonage.engines.process.groups.groups import Groups
from commonage.engines.process.groups.marked import TICKS, mark_of

_MAX_ANCESTORS = 64


class _ProcessInfo(NamedTuple):
    """Kernel data of a process: its name, its parent, and its start time, in clock ticks since boot."""

    name: str
    parent: int
    began: int


def owners_of(pids: Collection[int], groups: Groups, attempts: Iterable[str]) -> list[ProcessOwner]:
    """Owners of the processes that still run, by pid; `attempts` are all that run here."""
    held = {pid: attempt for attempt in attempts for pid in groups.pids(attempt)} if pids else {}
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    found = []
    for pid in sorted(set(pids)):
        look = _process_info(pid)
        if look is not None:
            owner = held.get(pid) or _of_ancestor(look.parent, held) or mark_of(pid)
            found.append(ProcessOwner(pid, owner, look.name, booted_at + look.began / TICKS))
    return found


def _of_ancestor(pid: int, held: dict[int, str]) -> str | None:
    for _ in range(_MAX_ANCESTORS):
        if pid <= 1:
            return None
        if pid in held:
            return held[pid]
        look = _process_info(pid)
        if look is None:
            return None
        pid = look.parent
    return None


def _process_info(pid: int) -> _ProcessInfo | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may contain anything.
    name, _, rest = stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    if fields[0] in (b"Z", b"X"):
        return None
    return _ProcessInfo(name.decode("utf-8", "replace"), int(fields[1]), int(fields[19]))
