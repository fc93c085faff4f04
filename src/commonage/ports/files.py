"""Files of homes and volumes that this machine sees. Implemented in `commonage.storage`, used by `control.files`.

Users write to these folders from workloads, so nothing in them is trusted: no link is followed, and only plain files
are opened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from commonage.domain.files import Listing, Parts
from commonage.domain.reasons.refusals import FilesGap
from commonage.domain.volumes import Volume


@dataclass(frozen=True, slots=True)
class Place:
    """A home (`home`: its user), or the folder `source` of a volume, on a cluster also the name of one that it keeps.

    `is_made`: it belongs to one user or tenant, and is created when it is first written to. `link`: the name of a link
    in the folder, trusted, that leads to the content; without it the content does not exist yet. `tenant` counts where
    each tenant has homes and volumes of its own. `writable`: workloads may write to it.
    """

    home: str = ""
    source: str = ""
    is_made: bool = False
    link: str = ""
    volume: str = ""
    tenant: str = ""
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload to `path`, which becomes a file when it has `length` bytes; until then it has the name of its `key`.

    `replace`: an existing file is replaced.
    """

    path: Parts
    key: str
    length: int
    replace: bool = False


class OpenFile(Protocol):
    """A plain file, opened for reading."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def modified_at(self) -> float: ...

    @property
    def version(self) -> str:
        """Another text for each content, as far as size and time of change tell."""

    async def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes; empty at the end. Raises Unavailable."""

    async def close(self) -> None: ...


class Files(Protocol):
    """Every method raises NotFound, InvalidInput for a path through a link or to no plain file, Conflict, Unavailable.

    A full disk or quota is a Conflict with the code `storage-full`.
    """

    def gap(self, volume: Volume | None) -> FilesGap | None:
        """Why the files of a volume, or of homes (None), cannot be seen; None: they can."""

    def is_per_tenant(self, volume: Volume | None) -> bool:
        """Whether each tenant has its own files in the volume, or a user a home in each tenant (None)."""

    async def list(self, place: Place, path: Parts) -> Listing:
        """The entries of a folder. A place that is made by its first use, and was not, is empty."""

    async def open(self, place: Place, path: Parts) -> OpenFile: ...

    async def uploaded(self, place: Place, path: Parts, key: str) -> int:
        """How many bytes of this upload were received; 0 if there is none."""

    async def receive(self, place: Place, upload: Upload, offset: int, chunks: AsyncIterator[bytes]) -> int:
        """Append to an upload, at offset 0 to an empty one; return its bytes so far. At its length it becomes the file.

        When `chunks` raises, the bytes before are kept. Only one call at a time for an upload, otherwise Conflict.
        """

    async def make_folder(self, place: Place, path: Parts) -> None:
        """Create the folder; it must not exist, and the folder above must."""

    async def move(self, place: Place, path: Parts, to: Parts) -> None:
        """Rename a file or folder within the place. Nothing is replaced."""

    async def remove(self, place: Place, path: Parts) -> None:
        """Delete a file, a link, or a folder with its content."""
