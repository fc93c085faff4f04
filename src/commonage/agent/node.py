"""The resources of this node besides GPUs: cores, memory, disks, and the state of the shared folder. Used by `run`."""

from __future__ import annotations

import os
import platform
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from commonage.agent.config import AgentConfig
from commonage.domain.nodes import Device, NodeReport
from commonage.engines.rundir.disk import tight_disk

_MIB = 1024 * 1024
_SHARED_WITHIN_S = 10.0


@dataclass(slots=True)
class SharedFolder:
    """The folder that all nodes see. A file server that does not answer blocks its caller, so a thread checks it."""

    path: Path
    _asked_at: float | None = None
    _fault: str = ""

    def fault(self, now: float) -> str:
        """The fault that the last check found; empty if none. Starts the next check.

        `now` is monotonic.
        """
        if self._asked_at is None:
            self._asked_at = now
            threading.Thread(target=self._look, name="shared folder", daemon=True).start()
        elif now - self._asked_at > _SHARED_WITHIN_S:
            return f"the shared folder {self.path} does not answer, for {now - self._asked_at:.0f} s now"
        return self._fault

    def _look(self) -> None:
        try:
            self._fault = "" if any(self.path.iterdir()) else f"the shared folder {self.path} is empty: is it mounted?"
        except OSError as error:
            self._fault = f"the shared folder {self.path} cannot be read: {error.strerror}"
        self._asked_at = None


class Node:
    """This node. `docker_root` is where its daemon keeps images and containers, empty while unknown."""

    def __init__(self, config: AgentConfig, docker_root: str) -> None:
        self._config = config
        self._shared = SharedFolder(Path(config.shared)) if config.shared else None
        self._docker_root = docker_root

    def note_docker_root(self, root: str) -> None:
        """Set the folder in which the daemon keeps images and containers."""
        self._docker_root = root

    def report(self, devices: tuple[Device, ...], faults: tuple[str, ...]) -> NodeReport:
        """The full report. Configured values replace detected ones. Blocks for a moment."""
        config, found = self._config, list(faults)
        if self._shared is not None and (fault := self._shared.fault(time.monotonic())):
            found.append(fault)
        root = self._docker_root
        free_mib = _free_mib(root)
        tight = "" if free_mib is None else tight_disk(free_mib, config.disk_low_mib, f"the disk of {root}")
        return NodeReport(
            config.node,
            config.cpus_milli or len(os.sched_getaffinity(0)) * 1000,
            config.memory_mib or memory_mib(),
            devices,
            free_mib,
            tuple(sorted({"arch": platform.node(), "os": "linux", **dict(config.labels)}.items())),
            tuple(found),
            tight,
        )


def _free_mib(place: str) -> int | None:
    try:
        return None if not place else shutil.disk_usage(place).free // _MIB
    except OSError:
        return None


def memory_mib(table: Path = Path("/proc/meminfo")) -> int:
    """Total memory of the node, MiB."""
    for line in table.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) // 1024
    return 0
