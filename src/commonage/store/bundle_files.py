"""Files sent along with workloads, as archives in a folder of the data directory: the bundles port on a file system.

bundles/<tenant>/<owner>/<digest>.tar.gz   a kept bundle; its modification time is its last use
bundles/<digest>.tar.gz                    a bundle of a release that did not record the owner
bundles/.coming-*                          an upload in progress
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from commonage.domain.errors import InvalidInput, NotFound, TooLarge, Unavailable
from commonage.ports.bundles import KeptBundle, ReceivedBundle

_T = TypeVar("_T")
_GZIP = b"\x1f\x8b"
_COMING = ".coming-"
_NAME = re.compile(r"([0-9a-f]{64})\.tar\.gz", re.ASCII)


class BundleFiles:
    """Archives under `folder`; none larger than `max_mib` MiB."""

    def __init__(self, folder: Path, max_mib: int = 64) -> None:
        self._folder, self._max_bytes = folder, max_mib * 1024 * 1024
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def all(self) -> Sequence[KeptBundle]:
        """All kept bundles; also removes uploads that a crash interrupted."""

        def read() -> Sequence[KeptBundle]:
            for left in self._folder.glob(f"{_COMING}*"):
                left.unlink(missing_ok=True)
            of_users = (
                bundle
                for place in sorted(self._folder.glob("*/*/"))
                for bundle in self._in(place, place.parent.name, place.name)
            )
            return [*self._in(self._folder, "", ""), *of_users]

        return await _done(read, "the bundles cannot be read")

    def _in(self, place: Path, tenant: str, owner: str) -> Iterator[KeptBundle]:
        for entry in os.scandir(place):
            match = _NAME.fullmatch(entry.name)
            if match is not None and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield KeptBundle(tenant, owner, match[1], status.st_size, status.st_mtime)

    async def receive(self, chunks: AsyncIterator[bytes]) -> ReceivedBundle:
        def new() -> IO[bytes]:
            return tempfile.NamedTemporaryFile(dir=self._folder, prefix=_COMING, delete=False)

        digest, size, head = hashlib.sha256(), 0, b""
        with await _done(new, "the bundle cannot be written") as coming:
            place = Path(coming.name)
            try:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._max_bytes:
                        raise TooLarge(
                            f"Bundle too large: at most {self._max_bytes // 1024**2} MiB are allowed, packed. Keep "
                            "large data in a volume."
                        )
                    head = (head + chunk[:2])[:2]
                    digest.update(chunk)
                    await _done(partial(coming.write, chunk), "the bundle cannot be written")
                if head != _GZIP:
                    raise InvalidInput(
                        "the uploaded file is not a tar.gz archive", field="bundle", code="invalid-bundle"
                    )
                await _done(lambda: _flush(coming), "the bundle cannot be written")
            except BaseException:
                place.unlink(missing_ok=True)
                raise
        return ReceivedBundle(place, digest.hexdigest(), size)

    async def keep(self, received: ReceivedBundle, kept: KeptBundle) -> None:
        def move() -> None:
            place = self._made(kept)
            os.utime(received.place, (kept.used_at, kept.used_at))
            os.replace(received.place, place)
            _flush_folder(place.parent)

        await _done(move, "the bundle cannot be kept")

    async def discard(self, received: ReceivedBundle) -> None:
        await _done(lambda: received.place.unlink(missing_ok=True), "the bundle cannot be removed")

    async def link(self, source: KeptBundle, kept: KeptBundle) -> None:
        def link() -> None:
            with suppress(FileExistsError):
                os.link(self.path(source), self._made(kept))

        try:
            await _done(link, "the bundle cannot be kept")
        except FileNotFoundError:
            raise _gone(kept) from None
        await self.note_use(kept)

    async def note_use(self, kept: KeptBundle) -> None:
        try:
            await _done(
                lambda: os.utime(self.path(kept), (kept.used_at, kept.used_at)),
                "the use of the bundle cannot be recorded",
            )
        except FileNotFoundError:
            raise _gone(kept) from None

    async def remove(self, kept: KeptBundle) -> None:
        def remove() -> None:
            place = self.path(kept)
            place.unlink(missing_ok=True)
            with suppress(OSError):
                for folder in place.parents[: 2 if kept.owner else 0]:
                    folder.rmdir()

        await _done(remove, "the bundle cannot be removed")

    def path(self, kept: KeptBundle) -> Path:
        return self._folder / kept.tenant / kept.owner / f"{kept.digest}.tar.gz"

    def _made(self, kept: KeptBundle) -> Path:
        place = self.path(kept)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return place


async def _done(work: Callable[[], _T], what: str) -> _T:
    """The result of `work` in a thread. Raises FileNotFoundError unchanged, other disk errors as Unavailable."""
    try:
        return await asyncio.to_thread(work)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unavailable(f"{what}: {error.strerror}. An admin must make room on the disk; try again later") from error


def _gone(kept: KeptBundle) -> NotFound:
    return NotFound(
        f"Bundle not found: the file of {kept.digest[:16]}… is gone. Send the files again and submit again.",
        code="bundle-not-found",
    )


def _flush(coming: IO[bytes]) -> None:
    coming.flush()
    os.fsync(coming.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
