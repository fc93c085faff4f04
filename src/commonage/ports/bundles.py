"""Files that users send along with their work, kept for each of them under the digest of what they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeptBundle:
    """An archive (tar.gz) that is kept: `digest` is its SHA-256 in 64 hex digits, `size` in bytes.

    `tenant` and `owner` are names of folders (see `domain.folders`); both are empty for one of a release that did not
    note them. `used_at`: when it was sent, or submitted with, last (unix seconds).
    """

    tenant: str
    owner: str
    digest: str
    size: int
    used_at: float


@dataclass(frozen=True, slots=True)
class ReceivedBundle:
    """An archive that has come and is not kept yet; `place` is the adapter's."""

    place: Path
    digest: str
    size: int


class Bundles(Protocol):
    """A folder of archives. Raises Unavailable where the disk does not take them."""

    async def all(self) -> Sequence[KeptBundle]:
        """All that are kept; for the start, as it removes what a crash left half received."""
        ...

    async def receive(self, chunks: AsyncIterator[bytes]) -> ReceivedBundle:
        """Write an archive down, for the caller to keep or discard.

        Raises TooLarge past the limit, InvalidInput(code="invalid-bundle") for what is no tar.gz; then nothing is left.
        """
        ...

    async def keep(self, received: ReceivedBundle, kept: KeptBundle) -> None:
        """Keep what was received as this one. Durable when this returns."""
        ...

    async def discard(self, received: ReceivedBundle) -> None:
        """Remove what was received, unless it was kept."""
        ...

    async def link(self, source: KeptBundle, kept: KeptBundle) -> None:
        """Keep the same archive as another one, too. Raises NotFound if `source` is gone."""
        ...

    async def note_use(self, kept: KeptBundle) -> None:
        """Write down its `used_at`. Raises NotFound if it is gone."""
        ...

    async def remove(self, kept: KeptBundle) -> None:
        """Remove it."""
        ...

    def path(self, kept: KeptBundle) -> Path:
        """Where it lies, on the control plane's disk."""
        ...
