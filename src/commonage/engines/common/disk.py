"""What a machine says of its disk: how much is free, that it is nearly full, or that it cannot be read."""

from __future__ import annotations

import shutil
from pathlib import Path

_MIB = 1024 * 1024


def free_on(*places: Path) -> tuple[int | None, tuple[str, ...]]:
    """MiB that are free on the fullest of these places, and what is wrong with one that cannot be read (then None).

    A shared folder may be away for a while: that is a fault of the machine (`NodeReport.faults`), no more. Blocks.
    """
    found = []
    for place in places:
        try:
            found.append(shutil.disk_usage(place).free // _MIB)
        except OSError as error:
            return None, (f"the folder {place} cannot be read: {error.strerror or error}",)
    return min(found), ()


def tight_disk(free_mib: int | None, least_mib: int, where: str) -> str:
    """The words for a node's report (`NodeReport.tight`); empty while `least_mib` are free, or nobody knows."""
    if free_mib is None or free_mib >= least_mib:
        return ""
    return f"only {free_mib} MiB are free on {where}, where {least_mib} MiB are needed; sessions start, to delete in"
