"""Values of labels: any text, hashed where no label can hold it."""

from __future__ import annotations

import hashlib
import re

_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def label_value(value: str) -> str:
    """The value if a label may have it, else a hash of it."""
    return value if _VALUE.fullmatch(value) else digest(value)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
