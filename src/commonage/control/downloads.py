"""A file as the answer to a request for it or for a range of its bytes: for API and portal, which send it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from email.utils import format_datetime
from urllib.parse import quote

from commonage.domain.errors import Unavailable
from commonage.domain.files import parse_range
from commonage.domain.time_zones import utc
from commonage.ports.files import OpenFile

MEDIA_TYPE = "application/octet-stream"
_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Download:
    """HTTP status, headers, and the bytes; the file is closed after the last, or by `close`."""

    status: int
    headers: Mapping[str, str]
    file: OpenFile
    first: int
    end: int

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Raises Unavailable if the file became shorter meanwhile."""
        at = self.first
        try:
            while at < self.end:
                chunk = await self.file.read(at, min(_CHUNK_BYTES, self.end - at))
                if not chunk:
                    raise Unavailable("the file became shorter while it was sent; load it again")
                at += len(chunk)
                yield chunk
        finally:
            await self.file.close()


async def download_of(file: OpenFile, name: str, byte_range: str | None, if_range: str | None) -> Download:
    """The answer for these headers `Range` and `If-Range`. Raises RangeInvalid; then the file is closed."""
    etag, size = f'"{file.version}"', file.size_bytes
    try:
        wanted = parse_range(byte_range, size) if if_range in (None, etag) else None
    except BaseException:
        await file.close()
        raise
    first, end = wanted or (0, size)
    headers = {
        # Never shown by the browser: a page in it would act as the portal.
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Content-Length": str(end - first),
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Last-Modified": format_datetime(utc(int(file.modified_at)), usegmt=True),
        "Cache-Control": "no-store, no-transform",
    }
    if wanted:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    return Download(206 if wanted else 200, headers, file, first, end)
