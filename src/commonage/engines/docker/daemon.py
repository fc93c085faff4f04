"""State and features of the daemon, and what follows: the node report, capabilities, user mapping.

Used by the engine.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Device, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import EngineNotAnswering, GpuDriverUnavailable
from commonage.domain.statuses import Capabilities
from commonage.engines.containers.daemon.gpus import GpuMethod, gpu_method_of
from commonage.engines.containers.files.control_folder import Owner
from commonage.engines.docker.client import Client
from commonage.engines.docker.settings import DockerSettings
from commonage.engines.rundir.disk import disk_pressure_of, free_on
from commonage.engines.rundir.table import InThread
from commonage.ports.devices import Devices, DevicesUnavailable

_MIB = 1024 * 1024
_REMAPPED = re.compile(r"/(\d+)\.(\d+)$")


class Daemon:
    def __init__(self, client: Client, settings: DockerSettings, in_thread: InThread) -> None:
        self._client = client
        self._settings = settings
        self._in_thread = in_thread
        self._info: Mapping[str, Any] = {}
        self._bounds_volumes = False
        self._fault = ""  # empty while its events are received
        self.started_at: float | None = None
        self.gpus: GpuMethod = "request"
        self.node = settings.node_name or socket.gethostname()

    async def refresh(self) -> None:
        """Query the daemon. Raises EngineFailure."""
        self._info = await self._client.info()
        self._bounds_volumes = await self._client.limits_volume_size()
        self.gpus = await self._in_thread(lambda: gpu_method_of(self._info))
        self.started_at = await self._in_thread(self._client.started_at)
        self._fault = ""

    def mark_unreachable(self, why: str) -> None:
        """Record that its events are not received; the node has this fault until the next `look`."""
        self._fault = why

    @property
    def live_restore(self) -> bool:
        """True if containers continue while the daemon is down."""
        return bool(self._info.get("LiveRestoreEnabled"))

    @property
    def owner(self) -> Owner:
        """The user of a container, inside and outside.

        Root inside if the server is root; else the server's own user, so that it can remove what the container writes.
        If the daemon maps users, root inside is an unprivileged user outside: its number is in the name of the daemon's
        folder.
        """
        uid, gid = os.geteuid(), os.getegid()
        mapped = remapped_root(self._info)
        if mapped is not None and uid == 0:
            return Owner(0, 0, *mapped)
        return Owner(uid, gid, uid, gid)

    def capabilities(self) -> Capabilities:
        info = self._info
        return Capabilities(
            "docker",
            isolates_users=True,
            mounts=True,
            bounded_on=(self.node,) if self._bounds_volumes else (),
            unbounded_on=() if self._bounds_volumes else (self.node,),
            limits_memory=bool(info.get("MemoryLimit", True)),
            limits_cpu=bool(info.get("CpuShares", True)),
            notes=notes_of(info),
        )

    async def report(self, data: Path, devices: Devices | None) -> NodeReport:
        """Report on the node, from the latest data. Settings take precedence over detected values."""
        fault = self._fault
        if not fault:
            try:
                self._info = await self._client.info()
            except EngineFailure as error:
                fault = str(error)
        return await self._in_thread(lambda: self._report(data, devices, fault))

    def _report(self, data: Path, devices: Devices | None, fault: str) -> NodeReport:
        faults: list[Reason] = [EngineNotAnswering(error=fault)] if fault else []
        gpus: tuple[Device, ...] = ()
        if devices is not None:
            try:
                gpus = tuple(devices.inventory())
            except DevicesUnavailable as error:
                faults.append(GpuDriverUnavailable(error=error.message))
        root = Path(str(self._info.get("DockerRootDir", data)))
        free, wrong = free_on(data, *([root] if os.path.exists(root) else []))
        return NodeReport(
            self.node,
            self._settings.cpus_milli or int(self._info.get("NCPU", 0)) * 1000,
            self._settings.memory_mib or int(self._info.get("MemTotal", 0)) // _MIB,
            gpus,
            free,
            tuple(sorted({"arch": platform.machine(), "os": "linux", **dict(self._settings.labels)}.items())),
            (*faults, *wrong),
            disk_pressure_of(free, self._settings.disk_low_mib, data, root),
        )


def remapped_root(info: Mapping[str, Any]) -> tuple[int, int] | None:
    """The user and group that root in a container is outside; None if it is root."""
    if not any("name=userns" in option for option in info.get("SecurityOptions") or ()):
        return None
    found = _REMAPPED.search(str(info.get("DockerRootDir", "")))
    return (int(found[1]), int(found[2])) if found else None


def notes_of(info: Mapping[str, Any]) -> tuple[str, ...]:
    options = " ".join(info.get("SecurityOptions") or ())
    notes = [f"Docker {info.get('ServerVersion', '?')}, storage {info.get('Driver', '?')}."]
    if "name=userns" in options:
        notes.append("The daemon maps users: root in a container is nobody on this machine.")
    else:
        notes.append(
            "The daemon does not map users: root in a container is this machine's root, with hardly any capability. "
            'Set "userns-remap": "default" in /etc/docker/daemon.json to have that barrier, too.'
        )
    if "name=seccomp" not in options:
        notes.append("The daemon has no seccomp profile: containers may make any system call.")
    if not info.get("LiveRestoreEnabled"):
        notes.append(
            'When the daemon is restarted, all workloads end and are queued again. Set "live-restore": true in '
            "/etc/docker/daemon.json to have them go on."
        )
    if not info.get("SwapLimit", True):
        notes.append("The kernel does not limit swap: a workload may take as much again there as it has memory.")
    return tuple(notes)
