"""CPU time and memory of the platform's processes: control plane, hub, proxy and edge."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.server import resident_mib

CONTROL_PLANE = "control plane"
_PARTS = {"hub": "jupyterhub", "proxy": "traefik", "edge": "caddy"}
"""By a word of the command."""
_EVERY_S = 1.0


class Platform:
    """Measures the server with this process id, and its children, from `start` on."""

    def __init__(self, pid: int) -> None:
        self._pids = {CONTROL_PLANE: pid}
        for child in _children(pid):
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace")
            self._pids.update({part: child for part, word in _PARTS.items() if word in words})
        self._before = self._cpu_s()
        self._began = time.monotonic()
        self.memory_mib = dict.fromkeys(self._pids, 0.0)
        """The most of each so far."""

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            for part, pid in self._pids.items():
                with suppress(OSError):
                    self.memory_mib[part] = max(self.memory_mib[part], resident_mib(pid))
            await asyncio.sleep(_EVERY_S)

    def cores(self) -> dict[str, float]:
        """Mean of cores that each used so far."""
        elapsed = time.monotonic() - self._began
        return {part: (used - self._before[part]) / elapsed for part, used in self._cpu_s().items()}

    def _cpu_s(self) -> dict[str, float]:
        return {part: _cpu_s(pid) for part, pid in self._pids.items()}


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(_stat(int(entry.name))[1]) == parent:
                found.append(int(entry.name))
    return found


def _stat(pid: int) -> list[str]:
    """From the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
