"""Files of jobs on the appliance: named after their digests, and kept while an attempt or a cron job may need them."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from commonage.domain.errors import EngineFailure, file_errors
from commonage.link.sites.messages.engine import BundleUpload
from commonage.link.sites.transport.packets import Packets, PacketType
from commonage.link.sites.transport.streams import Stream

_DIGEST = re.compile(r"[0-9a-f]{64}")


class SiteBundles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arriving: dict[str, int] = {}  # digests between their upload and the request that needs them

    def open(self) -> None:
        """Remove uploads that a crash left incomplete. Blocks briefly."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in self._folder.glob("*.part"):
            part.unlink()

    def path(self, digest: str) -> Path:
        """Raises EngineFailure."""
        if not _DIGEST.fullmatch(digest):
            raise EngineFailure(f"{digest[:80]!r} is not the digest of a bundle")
        return self._folder / f"{digest}.tar.gz"

    async def receive(self, upload: BundleUpload, stream: Stream) -> None:
        """Serve an upload. Raises EngineFailure if the content does not match its announcement; then nothing
        remains.
        """
        path, packets = self.path(upload.digest), Packets(stream)
        self._arriving[upload.digest] = 1
        if await asyncio.to_thread(path.exists):
            await packets.send(PacketType.STORED)
            return
        await packets.send(PacketType.WANTED)
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            with file_errors("the files of a job", part), part.open("wb") as file:
                await self._write(upload, stream, file.write)
            part.replace(path)
        finally:
            with suppress(FileNotFoundError):
                part.unlink()
        await packets.send(PacketType.STORED)

    async def _write(self, upload: BundleUpload, stream: Stream, write: object) -> None:
        assert callable(write)
        digest, size = hashlib.sha256(), 0
        while data := await stream.read():
            size += len(data)
            if size > upload.size:
                break
            digest.update(data)
            await asyncio.to_thread(write, data)
        if size != upload.size or digest.hexdigest() != upload.digest:
            raise EngineFailure(
                f"the files of the job arrived changed or incomplete ({size} of {upload.size} bytes)", retryable=True
            )

    def stored(self, digest: str) -> None:
        """The attempt or cron job that needs this bundle is stored, and keeps it from now on."""
        self._arriving.pop(digest, None)

    def forget_uploads(self) -> None:
        self._arriving.clear()

    async def remove_except(self, used: Collection[str]) -> None:
        kept = {f"{digest}.tar.gz" for digest in (*used, *self._arriving)}

        def remove() -> None:
            for path in self._folder.glob("*.tar.gz"):
                if path.name not in kept:
                    path.unlink(missing_ok=True)

        await asyncio.to_thread(remove)
