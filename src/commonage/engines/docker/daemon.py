"""State and features of the daemon, and what follows: node report, capabilities, user mapping, advice for an admin."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.engines import DockerInUse, NoLiveRestore, SwapNotLimited, UsersMapped, UsersNotMapped
from commonage.domain.reasons.nodes import DaemonWithoutSeccomp, EngineNotAnswering
from commonage.domain.statuses import Capabilities
from commonage.engines.containers.daemon.info import (
    BY_UUID,
    HOOK,
    DaemonSummary,
    GpuMethod,
    gpu_method_of,
    has_runtime,
    lacks_uuids,
)
from commonage.engines.containers.files.control_folder import Owner
from commonage.engines.docker.client import Client
from commonage.engines.rundir.node_report import local_report, node_name
from commonage.engines.rundir.node_usage import NodeUsageReader
from commonage.engines.rundir.tasks import InThread
from commonage.engines.settings import DockerSettings
from commonage.ports.devices import Devices

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
        self.node = node_name(settings)
        self._usage = NodeUsageReader()

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
        root = Path(str(self._info.get("DockerRootDir", data)))
        cpus_milli, memory_mib = int(self._info.get("NCPU", 0)) * 1000, int(self._info.get("MemTotal", 0)) // _MIB
        folders = [data, *([root] if os.path.exists(root) else [])]
        faults = [EngineNotAnswering(error=fault)] if fault else []
        report = local_report(self._settings, cpus_milli, memory_mib, devices, folders, faults)
        return replace(report, usage=self._usage.measure(*folders))


def remapped_root(info: Mapping[str, Any]) -> tuple[int, int] | None:
    """The user and group that root in a container is outside; None if it is root."""
    if not any("name=userns" in option for option in info.get("SecurityOptions") or ()):
        return None
    found = _REMAPPED.search(str(info.get("DockerRootDir", "")))
    return (int(found[1]), int(found[2])) if found else None


def notes_of(info: Mapping[str, Any]) -> tuple[Reason, ...]:
    options = " ".join(info.get("SecurityOptions") or ())
    notes: list[Reason] = [
        DockerInUse(version=str(info.get("ServerVersion", "?")), storage=str(info.get("Driver", "?")))
    ]
    notes.append(UsersMapped() if "name=userns" in options else UsersNotMapped())
    if "name=seccomp" not in options:
        notes.append(DaemonWithoutSeccomp())
    if not info.get("LiveRestoreEnabled"):
        notes.append(NoLiveRestore())
    if not info.get("SwapLimit", True):
        notes.append(SwapNotLimited())
    return tuple(notes)


async def examine_daemon(url: str) -> DaemonSummary:
    """Examine the daemon at `url`. Raises EngineFailure if it does not answer."""
    client = Client(url)
    try:
        info = await client.info()
    finally:
        await client.close()
    return await asyncio.to_thread(lambda: examined(info, has_hook=shutil.which(HOOK) is not None))


def examined(info: Mapping[str, Any], *, has_hook: bool = False) -> DaemonSummary:
    """Examine a daemon's own description; `has_hook`: the container toolkit's hook is on this computer's PATH."""
    options = " ".join(info.get("SecurityOptions") or ())
    gpus = "CDI" if gpu_method_of(info) == "cdi" else "nvidia" if has_runtime(info) or has_hook else "none"
    said = (
        f"Docker {info.get('ServerVersion')}, storage {info.get('Driver')}, cgroups {info.get('CgroupDriver')} version "
        f"{info.get('CgroupVersion', '1')}, users {'mapped' if remapped_root(info) else 'not mapped'}, "
        f"seccomp {'on' if 'name=seccomp' in options else 'off'}, "
        f"live-restore {'on' if info.get('LiveRestoreEnabled') else 'off'}, GPUs: {gpus}"
    )
    advice = []
    if not info.get("MemoryLimit", True):
        advice.append("the kernel does not limit memory: boot with cgroup_enable=memory")
    if info.get("CgroupDriver") == "systemd" and gpus == "nvidia":
        # `systemctl daemon-reload` rewrites the device rules of control groups, without those that the runtime added.
        advice.append("running containers lose their GPU at `systemctl daemon-reload`: use CDI or the cgroupfs driver")
    if lacks_uuids(info):
        advice.append(BY_UUID)
    if not info.get("LiveRestoreEnabled"):
        advice.append('set "live-restore": true in /etc/docker/daemon.json, so that a restart of Docker ends nothing')
    return DaemonSummary(said, "; ".join(advice))
