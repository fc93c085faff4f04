"""Files sent along with work, as archives in a folder of the data directory: the bundles port on a file system."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from commonage.domain.errors import InvalidInput, NotFound, TooLarge, Unavailable

_GZIP = b"\x1f\x8b"


class BundleFiles:
    """Archives under `folder`, each named by its SHA-256; none larger than `max_mib` MiB."""

    def __init__(self, folder: Path, max_mib: int = 64) -> None:
        self._folder, self._max_bytes = folder, max_mib * 1024 * 1024
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def save(self, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
        """Keep an archive; see the port."""
        digest, size, head = hashlib.sha256(), 0, b""
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".coming-", delete=False) as coming:
            try:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._max_bytes:
                        limit = self._max_bytes // 1024**2
                        raise TooLarge(
                            f"the files sent along are more than {limit} MiB packed; keep large data in a volume"
                        )
                    head = head or chunk[:2]
                    digest.update(chunk)
                    await asyncio.to_thread(coming.write, chunk)
                if head != _GZIP:
                    raise InvalidInput("what was sent is no tar.gz archive", field="bundle", code="invalid-bundle")
                await asyncio.to_thread(self._keep, coming, digest.hexdigest())
            except OSError as error:
                Path(coming.name).unlink(missing_ok=True)
                raise Unavailable(
                    f"the files cannot be kept: {error.strerror}; free some space and send again"
                ) from error
            except BaseException:
                Path(coming.name).unlink(missing_ok=True)
                raise
        return digest.hexdigest(), size

    def _keep(self, coming: IO[bytes], digest: str) -> None:
        coming.flush()
        os.fsync(coming.fileno())
        os.replace(coming.name, self._folder / f"{digest}.tar.gz")

    def path(self, digest: str) -> Path:
        """Where the archive lies; see the port."""
        path = self._folder / f"{digest}.tar.gz"
        if len(digest) != 64 or not digest.isalnum() or not path.is_file():
            raise NotFound(
                f"no files with the digest {digest[:16]}… were sent; send them first", code="bundle-not-found"
            )
        return path
