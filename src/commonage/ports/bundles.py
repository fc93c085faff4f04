"""Files that users upload for their workloads, stored per user under the digest of their content. Used by control."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeptBundle:
    """A stored archive (tar.gz): `digest` is its SHA-256 in 64 hex digits, `size` in bytes.

    `tenant` and `owner` are folder names (see `domain.volumes`); both are empty for one of an older release that did
    not record them. `used_at`: when it was last uploaded or submitted with (unix seconds).
    """

    tenant: str
    owner: str
    digest: str
    size: int
    used_at: float


@dataclass(frozen=True, slots=True)
class ReceivedBundle:
    """A received archive that is not kept yet; `place` belongs to the adapter."""

    place: Path
    digest: str
    size: int


class Bundles(Protocol):
    """A folder of archives. Raises Unavailable if writing fails."""

    async def all(self) -> Sequence[KeptBundle]:
        """All stored archives. Called at the start: it also removes uploads that a crash left incomplete."""

    async def receive(self, chunks: AsyncIterator[bytes]) -> ReceivedBundle:
        """Write an archive to disk, for the caller to keep or discard.

        Raises TooLarge above the limit, InvalidInput(code="invalid-bundle") for a file that is not tar.gz; then nothing
        remains.
        """

    async def keep(self, received: ReceivedBundle, kept: KeptBundle) -> None:
        """Store the received archive as `kept`. Durable when this returns."""

    async def discard(self, received: ReceivedBundle) -> None:
        """Remove the received archive, unless it was kept."""

    async def link(self, source: KeptBundle, kept: KeptBundle) -> None:
        """Store the same archive under a second entry, too. Raises NotFound if `source` is gone."""

    async def note_use(self, kept: KeptBundle) -> None:
        """Write its `used_at`. Raises NotFound if it is gone."""

    async def remove(self, kept: KeptBundle) -> None: ...

    def path(self, kept: KeptBundle) -> Path:
        """Its path on the control plane's disk."""
