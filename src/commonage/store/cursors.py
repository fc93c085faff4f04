"""Cursors of lists: the end of the last page, and the list, so that a cursor of another list is refused.

Called by all code that pages workloads. A cursor is `<id of the last one shown>-<digest of the filter>`.
"""

from __future__ import annotations

import re
from dataclasses import fields
from hashlib import blake2s

from commonage.domain.errors import InvalidInput
from commonage.domain.workloads import WORKLOAD_ID_LENGTH
from commonage.ports.store import Filter

_CURSOR = re.compile(rf"([0-9a-hjkmnp-tv-z]{{{WORKLOAD_ID_LENGTH}}})-([0-9a-f]{{8}})", re.ASCII)


def cursor_after(workload_id: str, which: Filter) -> str:
    """The cursor for workloads older than `workload_id` in the list of `which`."""
    return f"{workload_id}-{_digest(which)}"


def read_cursor(cursor: str, which: Filter) -> str:
    """The id to continue after. Raises InvalidInput(code="invalid-cursor") for any text but this list's cursors."""
    match = _CURSOR.fullmatch(cursor)
    if match is None or match[2] != _digest(which):
        shown = cursor if len(cursor) <= 40 else cursor[:37] + "..."
        raise InvalidInput(
            f"{shown!r} is not a cursor of this list; start without a cursor, and keep the filter from page to page",
            field="cursor",
            code="invalid-cursor",
        )
    return match[1]


def _digest(which: Filter) -> str:
    """Eight characters that differ between filters; the order within a collection does not matter."""
    parts = []
    for each in fields(which):
        value = getattr(which, each.name)
        if each.name in ("kinds", "states") and value is not None:
            value = sorted(str(item) for item in value)
        parts.append(repr(value))
    return blake2s("\n".join(parts).encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()
