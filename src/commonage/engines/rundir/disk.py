"""Disk state of a node: free space, nearly full, or unreadable. Called by engines and agents for node reports."""

from __future__ import annotations

import shutil
from pathlib import Path

from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import DiskNearlyFull, FolderNotReadable

_MIB = 1024 * 1024


def free_on(*places: Path) -> tuple[int | None, tuple[Reason, ...]]:
    """Free MiB on the fullest of these places, and a fault for one that cannot be read (then None).

    An unavailable shared folder is only a fault of the node (`NodeReport.faults`). Blocks.
    """
    found = []
    for place in places:
        try:
            found.append(shutil.disk_usage(place).free // _MIB)
        except OSError as error:
            return None, (FolderNotReadable(folder=str(place), error=error.strerror or str(error)),)
    return min(found), ()


def disk_pressure_of(free_mib: int | None, min_mib: int, *folders: object) -> Reason | None:
    """For `NodeReport.disk_pressure`: None while `min_mib` are free, or if free space is unknown."""
    if free_mib is None or free_mib >= min_mib:
        return None
    return DiskNearlyFull(folders=tuple(map(str, folders)), free_mib=free_mib, min_mib=min_mib)
