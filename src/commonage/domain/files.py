"""Files in homes and volumes, as their users see them: paths, entries, and byte ranges of downloads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.errors import CommonageError, InvalidInput
from commonage.units import quoted

Parts = tuple[str, ...]
"""A path below a home or volume; empty for the home or volume itself."""

MAX_PATH_BYTES, MAX_NAME_BYTES, MAX_DEPTH = 4096, 255, 64
MAX_ENTRIES = 5000
"""Entries of a folder that are listed."""
KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


class RangeInvalid(CommonageError):
    """The requested bytes are beyond the end of the file."""

    code = "range-invalid"
    status = 416

    def __init__(self, size: int) -> None:
        super().__init__(f"the file has {size} bytes, and the range lies behind its end; load it from the start")
        self.size = size


class EntryKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a folder. Links are not followed; `other` is a device, socket or pipe."""

    name: str
    kind: EntryKind
    size_bytes: int
    modified_at: float


@dataclass(frozen=True, slots=True)
class Listing:
    """Folders first, then by name. `left_out`: entries beyond MAX_ENTRIES, and those whose name is not UTF-8.

    Of a very large folder, not all names are read: then there are more.
    """

    entries: tuple[Entry, ...] = ()
    left_out: int = 0


def parse_path(text: str, *, field: str = "path") -> Parts:
    """The parts of a path; slashes at both ends do not count. Raises InvalidInput."""
    parts = tuple(part for part in text.split("/") if part not in ("", "."))
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise _wrong(text, "is not text in UTF-8", field) from None
    if ".." in parts:
        raise _wrong(text, "has `..` in it; write the path from the top of the home or volume", field)
    if any(not part.isprintable() for part in parts):
        raise _wrong(text, "has control characters in it; rename it in a session", field)
    if sum(sizes) + len(sizes) > MAX_PATH_BYTES or len(parts) > MAX_DEPTH or max(sizes, default=0) > MAX_NAME_BYTES:
        raise _wrong(text, f"is too long: {MAX_NAME_BYTES} bytes for a name and {MAX_DEPTH} folders are allowed", field)
    return parts


def need_name(parts: Parts, *, field: str = "path") -> Parts:
    """The path, if it names something below the home or volume. Raises InvalidInput."""
    if not parts:
        raise _wrong("/", "is the home or volume itself; name a file or folder in it", field)
    return parts


def check_key(key: str) -> str:
    """The name of an unfinished upload. Raises InvalidInput."""
    if not KEY.fullmatch(key):
        raise InvalidInput(
            "the key of an upload has 32 hexadecimal digits, as `openssl rand -hex 16` makes", field="key"
        )
    return key


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The (first, end) bytes of a Range header with one range; None for the whole file. Raises RangeInvalid."""
    match = _RANGE.fullmatch((header or "").strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        first, end = max(0, size - int(match[2])), size
    else:
        first, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    if first >= size:
        raise RangeInvalid(size)
    return None if end <= first else (first, end)


def join(parts: Sequence[str]) -> str:
    return "/".join(parts)


def _wrong(text: str, why: str, field: str) -> InvalidInput:
    return InvalidInput(f"the path {quoted(text, 200)} {why}", field=field, code="invalid-path")
