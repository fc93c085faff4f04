"""Report on the node that the control plane runs on: cores, memory, GPUs, disk. Agents use the disk's part of it."""

from __future__ import annotations

import platform
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from commonage.domain.nodes import Device, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import DiskNearlyFull, FolderNotReadable, GpuDriverUnavailable
from commonage.engines.settings import LocalNodeSettings
from commonage.ports.devices import Devices, DevicesUnavailable

_MIB = 1024 * 1024


def node_name(settings: LocalNodeSettings) -> str:
    return settings.node_name or socket.gethostname()


def local_report(
    settings: LocalNodeSettings,
    cpus_milli: int,
    memory_mib: int,
    devices: Devices | None,
    folders: Sequence[Path],
    faults: Sequence[Reason] = (),
) -> NodeReport:
    """Settings take precedence over the detected cores and memory. Queries the GPU driver, so call it in a thread."""
    found = list(faults)
    gpus: tuple[Device, ...] = ()
    if devices is not None:
        try:
            gpus = tuple(devices.inventory())
        except DevicesUnavailable as error:
            found.append(GpuDriverUnavailable(error=error.message))
    free, disk_faults = free_on(*folders)
    return NodeReport(
        node_name(settings),
        settings.cpus_milli or cpus_milli,
        settings.memory_mib or memory_mib,
        gpus,
        free,
        tuple(sorted({"arch": platform.machine(), "os": "linux", **dict(settings.labels)}.items())),
        (*found, *disk_faults),
        disk_pressure_of(free, settings.disk_low_mib, *folders),
    )


def free_on(*folders: Path) -> tuple[int | None, tuple[Reason, ...]]:
    """Free MiB on the fullest of these folders, and a fault for one that cannot be read (then None).

    An unavailable shared folder is only a fault of the node (`NodeReport.faults`). Blocks.
    """
    free = []
    for folder in folders:
        try:
            free.append(shutil.disk_usage(folder).free // _MIB)
        except OSError as error:
            return None, (FolderNotReadable(folder=str(folder), error=error.strerror or str(error)),)
    return min(free), ()


def disk_pressure_of(free_mib: int | None, min_mib: int, *folders: object) -> Reason | None:
    """For `NodeReport.disk_pressure`: None while `min_mib` are free, or if free space is unknown."""
    if free_mib is None or free_mib >= min_mib:
        return None
    return DiskNearlyFull(folders=tuple(map(str, folders)), free_mib=free_mib, min_mib=min_mib)
