"""What a row of the table of settings is made of. Used by `settings` and by the files of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

A_PORT = "a port from 1 to 65535, or 0 for a free one"


@dataclass(frozen=True, slots=True)
class Row:
    """What the table says of a setting beside its type and default. `allowed` completes "it takes …"."""

    allowed: str
    group: str
    flag: str | None = None
    secret: bool = False


def setting(default: Any, description: str, row: Row) -> Any:
    """A field of the table."""
    return Field(default, description=description, json_schema_extra={"row": row})  # type: ignore[dict-item]
