"""Disk state of a node: free space, nearly full, or unreadable. Called by engines for their node reports."""

from __future__ import annotations

import shutil
from pathlib import Path

_MIB = 1024 * 1024


def free_on(*places: Path) -> tuple[int | None, tuple[str, ...]]:
    """Free MiB on the fullest of these places, and a fault for one that cannot be read (then None).

    An unavailable shared folder is only a fault of the node (`NodeReport.faults`). Blocks.
    """
    found = []
    for place in places:
        try:
            found.append(shutil.disk_usage(place).free // _MIB)
        except OSError as error:
            return None, (f"the folder {place} cannot be read: {error.strerror or error}",)
    return min(found), ()


def tight_disk(free_mib: int | None, least_mib: int, where: str) -> str:
    """Text for a node report (`NodeReport.tight`); empty while `least_mib` are free, or if free space is unknown."""
    if free_mib is None or free_mib >= least_mib:
        return ""
    return f"only {free_mib} MiB are free on {where}, where {least_mib} MiB are needed; sessions start, to delete in"
