"""CPU time and memory of the platform's processes: control plane, hub, proxy and edge."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.server import resident_mib

CONTROL_PLANE = "control plane"
_PROGRAMS = {"traefik": "proxy", "caddy": "edge"}
_MODULES = {"commonage.hub": "hub"}
_EVERY_S = 1.0


class Platform:
    """Measures the server with this process id, and its descendants, from now on."""

    def __init__(self, pid: int) -> None:
        self._pids = {CONTROL_PLANE: pid}
        for child in _descendants(pid):
            if part := _part(child):
                self._pids[part] = child
        self._before = self._cpu_s()
        self._began = time.monotonic()
        self.memory_mib = dict.fromkeys(self._pids, 0.0)
        """The maximum of each so far."""

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            for part, pid in self._pids.items():
                with suppress(OSError):
                    self.memory_mib[part] = max(self.memory_mib[part], resident_mib(pid))
            await asyncio.sleep(_EVERY_S)

    def cores(self) -> dict[str, float]:
        """Mean number of cores that each has used so far."""
        elapsed = time.monotonic() - self._began
        return {part: (used - self._before[part]) / elapsed for part, used in self._cpu_s().items()}

    def _cpu_s(self) -> dict[str, float]:
        return {part: _cpu_s(pid) for part, pid in self._pids.items()}


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _part(pid: int) -> str | None:
    """The part of the platform that this process is, by its command."""
    program, *words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return _PROGRAMS.get(Path(program).name) or next((_MODULES[word] for word in words if word in _MODULES), None)


def _descendants(parent: int) -> list[int]:
    children = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(_stat(int(entry.name))[1]) == parent:
                children.append(int(entry.name))
    return [*children, *(one for child in children for one in _descendants(child))]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
