"""The kernel's data about processes, from /proc. Standard library only, because agents use it too."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessInfo(NamedTuple):
    """`began` is in clock ticks since boot."""

    name: str
    parent: int
    session: int
    began: int
    cpu_s: float
    resident_bytes: int

    @property
    def started_at(self) -> float:
        """Unix seconds."""
        return booted_at() + self.began / TICKS


def process_info(pid: int, processes: Path = Path("/proc")) -> ProcessInfo | None:
    """None if it does not exist or is a zombie. `processes` may be another node's, as seen from a container there."""
    try:
        stat = (processes / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may contain anything; the state is the first field after it.
    name, _, rest = stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    if fields[0] in (b"Z", b"X"):
        return None
    return ProcessInfo(
        name=name.decode("utf-8", "replace"),
        parent=int(fields[1]),
        session=int(fields[3]),
        began=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
        resident_bytes=int(fields[21]) * _PAGE,
    )


def variable_of(pid: int, name: str) -> str:
    """A variable in the environment that the process was started with; empty without it.

    Also if the process is gone, or another user's.
    """
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    prefix = f"{name}=".encode()
    match = next((pair for pair in environment.split(b"\0") if pair.startswith(prefix)), b"")
    return match.partition(b"=")[2].decode("ascii", "replace")


def booted_at() -> float:
    """Boot time of this node, unix seconds."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
