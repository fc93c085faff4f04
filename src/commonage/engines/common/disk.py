"""What a machine says of a disk that is nearly full. Pure."""

from __future__ import annotations


def tight_disk(free_mib: int, least_mib: int, where: str) -> str:
    """The words for a node's report (`NodeReport.tight`); empty while at least `least_mib` are free."""
    if free_mib >= least_mib:
        return ""
    return f"only {free_mib} MiB are free on {where}, where {least_mib} MiB are needed; sessions start, to delete in"
