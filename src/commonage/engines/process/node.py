"""Cores, memory, disk and GPUs of this computer, as the single node of a process site. Called by the engine."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import psutil

from commonage.domain.nodes import Device, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import GpuDriverUnavailable
from commonage.engines.process.settings import ProcessSettings
from commonage.engines.rundir.disk import disk_pressure_of, free_on
from commonage.ports.devices import Devices, DevicesUnavailable

_MIB = 1024 * 1024
NOT_ISOLATED = (
    "Workloads run as plain processes under the server's own account: people are kept apart by agreement only and "
    "can read and stop each other's work. Use a container engine where they do not trust each other."
)
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def node_name(settings: ProcessSettings) -> str:
    return settings.node_name or socket.gethostname()


def report_node(settings: ProcessSettings, data: Path, devices: Devices | None) -> NodeReport:
    """Report on this node.

    Settings take precedence over detected values. Queries the GPU driver, so call it in a thread.
    """
    faults: list[Reason] = []
    gpus: tuple[Device, ...] = ()
    if devices is not None:
        try:
            gpus = tuple(devices.inventory())
        except DevicesUnavailable as error:
            faults.append(GpuDriverUnavailable(error=error.message))
    free, wrong = free_on(data)
    return NodeReport(
        node_name(settings),
        settings.cpus_milli or len(os.sched_getaffinity(0)) * 1000,
        settings.memory_mib or _memory_mib(),
        gpus,
        free,
        tuple(sorted({"arch": platform.machine(), "os": "linux", **dict(settings.labels)}.items())),
        (*faults, *wrong),
        disk_pressure_of(free, settings.disk_low_mib, data),
    )


def _memory_mib() -> int:
    """The computer's memory, or the limit of the container that we are in."""
    found = [int(psutil.virtual_memory().total)]
    for name in _LIMITS:
        try:
            limit = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if limit.isdigit():
            found.append(int(limit))
    return min(found) // _MIB
