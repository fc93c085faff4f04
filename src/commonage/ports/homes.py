"""Disk usage of homes and of folder volumes. Implemented in `commonage.storage`, used by `control.usage.homes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FolderSize:
    """A folder of a volume: what stands for `{tenant}` and `{user}` in its source (None: not in it), and its size."""

    volume: str
    tenant: str | None
    user: str | None
    used_mib: int


class Homes(Protocol):
    """All homes, each a folder named by `domain.volumes.folder_name`, and the folders of volumes that belong to one
    tenant or user.
    """

    async def measure(self) -> Mapping[str, int]:
        """Disk usage in MiB of each home, by folder name. May take minutes. Raises Unavailable."""

    async def measure_volumes(self) -> Sequence[FolderSize]:
        """Disk usage of each folder of a volume that this machine sees. May take minutes. Raises Unavailable."""
