"""Disk usage of homes and of folder volumes, and limits on it. Implemented in `commonage.storage`, used by
`control.usage.homes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from commonage.domain.reasons.notes import StorageGap
from commonage.domain.volumes import Volume


@dataclass(frozen=True, slots=True)
class FolderSize:
    """A folder of a volume: what stands for `{tenant}` and `{user}` in its source (None: not in it), and its size."""

    volume: str
    tenant: str | None
    user: str | None
    used_mib: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Why the file systems enforce no limits: of homes, and by the name of a volume. None, or absent: they do."""

    homes: StorageGap | None = None
    volumes: Mapping[str, StorageGap] = field(default_factory=dict)


class Homes(Protocol):
    """All homes, each a folder named by `domain.volumes.folder_name`, and the folders of volumes that belong to one
    tenant or user.
    """

    async def measure(self) -> Mapping[str, int]:
        """Disk usage in MiB of each home, by folder name. May take minutes. Raises Unavailable."""

    async def measure_volumes(self, volumes: Sequence[Volume]) -> Sequence[FolderSize]:
        """Disk usage of each folder of these volumes that this machine sees. May take minutes. Raises Unavailable."""

    async def enforce(
        self,
        homes: Mapping[str, int | None],
        folders: Sequence[tuple[FolderSize, int | None]],
        volumes: Sequence[Volume],
    ) -> Enforcement:
        """Have the file system limit homes and `folders` of `volumes`, each in MiB; None: no limit.

        The first limit of a folder may take minutes. Raises Unavailable.
        """
