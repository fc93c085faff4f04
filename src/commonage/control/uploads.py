"""A part of a file as a request sends it: for API and portal, which receive it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from commonage.control.files import UserFiles, Where
from commonage.domain.errors import InvalidInput
from commonage.domain.principals import Principal

_MOST_DIGITS = 16  # control.files checks the limits


@dataclass(frozen=True, slots=True)
class SentPart:
    """`headers`: those of the request; `Upload-Offset` is where `body` continues, `Upload-Length` the size of the file.

    `gone`: what `body` raises when the client is gone.
    """

    key: str
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]
    gone: type[Exception]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes that are received, and whether those are the whole file."""

    offset: int
    complete: bool


async def receive_part(files: UserFiles, principal: Principal, where: Where, sent: SentPart) -> Progress:
    """Receive a part of a file; bytes that arrive before a disconnect are kept. Raises as `UserFiles.receive` does."""
    length = _count(sent.headers, "Upload-Length")
    part = (sent.key, _count(sent.headers, "Upload-Offset"), length)
    offset = await files.receive(principal, where, part, _until_gone(sent), replace=sent.replace)
    return Progress(offset, offset == length)


def _count(headers: Mapping[str, str], name: str) -> int:
    text = headers.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InvalidInput(f"the header {name} must be a number of bytes", field=name, code="upload-mismatch")
    return int(text)


async def _until_gone(sent: SentPart) -> AsyncIterator[bytes]:
    try:
        async for chunk in sent.body:
            yield chunk
    except sent.gone:
        return
