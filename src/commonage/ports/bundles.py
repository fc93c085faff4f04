"""Files that users send along with their work, kept under the digest of what they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol


class Bundles(Protocol):
    """Archives (tar.gz) by their SHA-256."""

    async def save(self, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
        """Keep an archive; its digest (64 hex digits) and size in bytes.

        Raises TooLarge past the limit, InvalidInput(code="invalid-bundle") for what is no tar.gz; then nothing is kept.
        """
        ...

    def path(self, digest: str) -> Path:
        """Where it lies, on the control plane's disk. Raises NotFound(code="bundle-not-found")."""
        ...
