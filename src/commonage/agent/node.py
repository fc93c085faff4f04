"""The resources of this node except GPUs: cores, memory, disks, and the shared folder. Used by `agent`."""

from __future__ import annotations

import os
import platform
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.agent.config import AgentConfig
from commonage.domain.nodes import Device, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import FolderNotReadable, SharedFolderEmpty, SharedFolderSilent
from commonage.engines.rundir.node_report import disk_pressure_of
from commonage.engines.rundir.node_usage import NodeUsageReader

_MIB = 1024 * 1024
_SHARED_TIMEOUT_S = 10.0


@dataclass(slots=True)
class SharedFolder:
    """The folder that all nodes see. A file server that does not answer blocks its caller, so a thread checks it."""

    path: Path
    _check_began_at: float | None = None
    _fault: Reason | None = None

    def fault(self, now: float) -> Reason | None:
        """The fault that the last check found; None if none. Starts the next check. `now` is monotonic."""
        if self._check_began_at is None:
            self._check_began_at = now
            threading.Thread(target=self._check, name="shared folder", daemon=True).start()
        elif now - self._check_began_at > _SHARED_TIMEOUT_S:
            return SharedFolderSilent(folder=str(self.path), silent_s=round(now - self._check_began_at))
        return self._fault

    def _check(self) -> None:
        try:
            self._fault = None if any(self.path.iterdir()) else SharedFolderEmpty(folder=str(self.path))
        except OSError as error:
            self._fault = FolderNotReadable(folder=str(self.path), error=error.strerror or str(error))
        self._check_began_at = None


class Node:
    """This node. `docker_root` is where its daemon keeps images and containers, empty while unknown."""

    def __init__(self, config: AgentConfig, docker_root: str) -> None:
        self._config = config
        self._shared = SharedFolder(Path(config.shared)) if config.shared else None
        self._docker_root = docker_root
        self._usage = NodeUsageReader()

    def note_docker_root(self, root: str) -> None:
        self._docker_root = root

    def report(self, devices: tuple[Device, ...], faults: tuple[Reason, ...]) -> NodeReport:
        """The full report. Configured values replace detected ones. Blocks for a moment."""
        config, all_faults = self._config, list(faults)
        if self._shared is not None and (fault := self._shared.fault(time.monotonic())) is not None:
            all_faults.append(fault)
        root, free_mib = self._docker_root, None
        with suppress(OSError):
            free_mib = shutil.disk_usage(root).free // _MIB if root else None
        return NodeReport(
            config.node,
            config.cpus_milli or len(os.sched_getaffinity(0)) * 1000,
            config.memory_mib or memory_mib(),
            devices,
            free_mib,
            tuple(sorted({"arch": platform.machine(), "os": "linux", **dict(config.labels)}.items())),
            tuple(all_faults),
            disk_pressure_of(free_mib, config.disk_low_mib, root),
            usage=self._usage.measure(*([Path(root)] if root else [])),
        )


def memory_mib(table: Path = Path("/proc/meminfo")) -> int:
    for line in table.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) // 1024
    return 0
