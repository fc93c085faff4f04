"""In which line of a TOML file a value stands: for the sentence about what is wrong with it.

A plain look at headers and keys, enough for how people write settings; where it finds nothing, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEADER = re.compile(r"\s*(?P<list>\[)?\[\s*(?P<name>[\w.-]+)\s*\]")
_KEY = re.compile(r"\s*(?P<key>[\w-]+(?:\s*\.\s*[\w-]+)*)\s*=")


def line_of(text: str, location: Sequence[int | str]) -> int | None:
    """The line, from 1, of the value at `location` (`("tenants", 0, "nominal", "gpus")`), or of what holds it."""
    wanted = [str(part) for part in location if isinstance(part, str)]
    index = next((part for part in location if isinstance(part, int)), None)
    table: list[str] = []
    entries = -1
    found = None
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            table = header["name"].split(".")
            entries += header["list"] is not None and table == wanted[:1]
            here = table
        elif key is not None:
            here = [*table, *(part.strip() for part in key["key"].split("."))]
        else:
            continue
        in_entry = index is None or entries == index or (not table and here == wanted[:1])
        if in_entry and here == wanted[: len(here)]:
            found = number
    return found
