"""Homes and folder volumes: their disk usage and limits on it, and the folders of one user or tenant.

Implemented in `commonage.storage`, and for sites elsewhere in `engines.remote`. Used by `control.usage.homes` and
`control.offboarding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from commonage.domain.reasons.notes import StorageGap
from commonage.domain.volumes import Volume


@dataclass(frozen=True, slots=True)
class FolderSize:
    """A folder of a volume: what stands for `{tenant}` and `{user}` in its source (None: not in it), and its size.

    Or a claim of a cluster, of a home (`volume` empty) or a volume: `size_mib` is the requested size, which counts in
    its tenant's quota and which the cluster enforces. `is_known`: whether its use is.
    """

    volume: str
    tenant: str | None
    user: str | None
    used_mib: int
    path: str = ""
    size_mib: int | None = None
    is_known: bool = True

    @property
    def counted_mib(self) -> int:
        """The size that counts in the quota of its tenant."""
        return self.used_mib if self.size_mib is None else self.size_mib


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Why the file systems enforce no limits: of homes, and by the name of a volume. None, or absent: they do."""

    homes: StorageGap | None = None
    volumes: Mapping[str, StorageGap] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwnedFolder:
    """The home (`volume` empty) or a folder of a volume that belongs to one user or tenant. `path` is absolute."""

    volume: str
    path: str


class Storage(Protocol):
    """The homes of a site, each a folder named by `domain.volumes.folder_name`, and the folders of volumes that belong
    to one tenant or user: their sizes, and limits on them.
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
    ) -> Enforcement | None:
        """Have the file system limit homes and `folders` of `volumes`, each in MiB; None: no limit.

        Returns None for a site that measures nothing, such as a cluster. The first limit of a folder may take minutes.
        Raises Unavailable.
        """


class Homes(Storage, Protocol):
    """Those of this machine, which can be moved and deleted, too."""

    async def folders_of(
        self, volumes: Sequence[Volume], *, user: str | None = None, tenant: str | None = None
    ) -> Sequence[OwnedFolder]:
        """The folders of this user or tenant that this machine sees, the home first. Raises Unavailable."""

    async def claims_of(
        self, volumes: Sequence[Volume], *, user: str | None = None, tenant: str | None = None
    ) -> Sequence[str]:
        """Claims of a cluster with data of this user or tenant, as NAMESPACE/NAME. Offboarding leaves them.

        Raises Unavailable.
        """

    def place(self, folder: OwnedFolder, name: str, within: str | None = None) -> str:
        """The path that this folder would have for another user or tenant; `within`: below that one, as this name."""

    async def is_free(self, path: str) -> bool:
        """True if there is nothing at this path."""

    async def move(self, folder: OwnedFolder, to: str) -> None:
        """Move it to a path of `place`. A folder that is missing is no error. Raises Unavailable, Conflict."""

    @property
    def archives(self) -> str:
        """The path of the folder with all archives."""

    async def archive(self, folder: OwnedFolder, name: str) -> None:
        """Pack it into a new archive `NAME.tar`, then delete it. Repeating it continues an interrupted call. Raises
        Unavailable.

        An archive that is complete is not written again: a name must be used for one folder and one removal.
        """

    async def delete(self, folder: OwnedFolder) -> None:
        """Delete it with its content. A folder that is missing is no error. Raises Unavailable."""
