"""This computer as the single node of a process site: its cores, memory and loopback ports. Called by the engine."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import psutil

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import NodeReport
from commonage.engines.rundir.node_report import local_report
from commonage.engines.rundir.node_usage import NodeUsageReader
from commonage.engines.settings import ProcessSettings
from commonage.ports.devices import Devices

_MIB = 1024 * 1024
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def report_node(settings: ProcessSettings, data: Path, devices: Devices | None, reader: NodeUsageReader) -> NodeReport:
    """Queries the GPU driver, so call it in a thread."""
    cpus_milli = len(os.sched_getaffinity(0)) * 1000
    report = local_report(settings, cpus_milli, _memory_mib(), devices, [data])
    return replace(report, usage=reader.measure(data))


def _memory_mib() -> int:
    """The computer's memory, or the limit of the container that this process runs in."""
    found = [int(psutil.virtual_memory().total)]
    for name in _LIMITS:
        try:
            limit = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if limit.isdigit():
            found.append(int(limit))
    return min(found) // _MIB


class PortRange:
    """Hands out ports from `first` to `last` in rotation, so that a port just returned is not reused at once.

    The rotation begins at `start`. Several servers on one node should begin at different ports: a port is free until
    its session listens, which may take minutes, and two servers that began at the same one would both give it out.
    A port is held by attempts, several of a gang, until the last of them gives it back.
    """

    def __init__(self, first: int, last: int, start: int) -> None:
        self._first, self._last = first, last
        self._next = start
        self._held: dict[int, set[str]] = {}

    def take(self, attempt_id: str, wanted: int | None = None) -> int:
        """Hold and return this port, or (None) any of the range. Raises EngineFailure if it is not free."""
        if wanted is not None:
            if wanted in self._held or not _is_free(wanted):
                raise EngineFailure(
                    f"port {wanted} of this node is in use; submit without a port, and have the program listen on "
                    "{port} (or $COMMONAGE_PORT)"
                )
            self.hold(wanted, attempt_id)
            return wanted
        for _ in range(self._last - self._first + 1):
            port = self._next
            self._next = self._first if port == self._last else port + 1
            if port not in self._held and _is_free(port):
                self.hold(port, attempt_id)
                return port
        raise EngineFailure(f"no port from {self._first} to {self._last} is free", retryable=True)

    def hold(self, port: int, attempt_id: str) -> None:
        """Also hold this one for an attempt that was found again, or that shares it with others of its gang."""
        self._held.setdefault(port, set()).add(attempt_id)

    def give_back(self, port: int, attempt_id: str) -> None:
        """Idempotent: another attempt that holds the port now keeps it."""
        if port in self._held:
            self._held[port].discard(attempt_id)
            if not self._held[port]:
                del self._held[port]


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: lingering connections of the last owner do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
