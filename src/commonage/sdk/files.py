"""Both ends of a transfer on this machine: the file that is uploaded, and the unfinished file of a download."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from commonage.sdk.errors import ApiError

PIECE_BYTES = 8 * 1024 * 1024
BINARY = {"Content-Type": "application/octet-stream"}
_ETAG = re.compile(r'"([0-9a-f]+-[0-9a-f]+)"', re.ASCII)


class Source:
    """The file to upload, as it is now. Raises OSError."""

    def __init__(self, file: str | os.PathLike[str], path: str) -> None:
        self._file = Path(file)
        status = self._file.stat()
        self.size_bytes = status.st_size
        words = (path, str(self._file.absolute()), str(status.st_size), str(status.st_mtime_ns))
        self.key = hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        """The same for the same file and target, so that another run continues with the upload."""

    def piece(self, offset: int) -> bytes:
        with self._file.open("rb") as file:
            file.seek(offset)
            found = file.read(min(PIECE_BYTES, self.size_bytes - offset))
        if not found and offset < self.size_bytes:
            raise ApiError("file-changed", f"{self._file} became shorter while it was uploaded; upload it again")
        return found

    def headers(self, offset: int) -> Mapping[str, str]:
        return {**BINARY, "Upload-Offset": str(offset), "Upload-Length": str(self.size_bytes)}


class Target:
    """The file to download to. Until it is complete, its data is in `.NAME.ETAG.part` in the same folder, from which
    another run continues.

    Raises OSError.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self._file = Path(file)
        self._etag, self.received, self.size_bytes = "", 0, 0
        start, end = f".{self._file.name}.", ".part"
        for name in sorted(os.listdir(self._file.parent)):
            etag = name[len(start) : -len(end)]
            if name.startswith(start) and name.endswith(end) and _ETAG.fullmatch(f'"{etag}"'):
                self._etag = etag
                self.received = self._part.stat().st_size

    @property
    def _part(self) -> Path:
        return self._file.parent / f".{self._file.name}.{self._etag}.part"

    def headers(self) -> Mapping[str, str]:
        whole = {"Accept-Encoding": "identity"}
        if not self.received:
            return whole
        return whole | {"Range": f"bytes={self.received}-", "If-Range": f'"{self._etag}"'}

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Continue with 206; begin again with 200, as the file has changed."""
        length, match = int(headers["Content-Length"]), _ETAG.fullmatch(headers.get("ETag", ""))
        if match is None:
            raise ApiError("not-commonage", "the response does not come from Commonage; is the address right?")
        if status != 206:
            self.discard()
            self._etag = match[1]
        self.size_bytes = self.received + length

    def write(self, chunk: bytes) -> None:
        with self._part.open("ab") as file:
            file.write(chunk)
        self.received += len(chunk)

    def discard(self) -> None:
        """Delete the received bytes."""
        if self._etag:
            with suppress(FileNotFoundError):
                self._part.unlink()
        self.received = 0

    @property
    def is_complete(self) -> bool:
        return self.received == self.size_bytes

    def finish(self) -> None:
        if not self.received:
            self._part.touch()
        self._part.replace(self._file)
