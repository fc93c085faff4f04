"""Git's ids of files, which follow from their content. Used by `versions` and `copies`."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from commonage.files.safe_path import SafePath

CHUNK = 1024 * 1024


def digest_of(size: int, like: str) -> Any:
    """Git's hash of a file of this size, in the way in which `like` was made."""
    made = hashlib.sha256() if len(like) == 64 else hashlib.sha1(usedforsecurity=False)
    made.update(f"blob {size}\0".encode())
    return made


def id_of(place: SafePath, size: int, like: str) -> str:
    """Git's id of the plain file; "" if its size is another one, or it cannot be read."""
    digest, read = digest_of(size, like), 0
    try:
        with os.fdopen(place.open(os.O_RDONLY), "rb") as file:
            while part := file.read(CHUNK):
                read += len(part)
                if read > size:
                    return ""
                digest.update(part)
    except OSError:
        return ""
    return str(digest.hexdigest()) if read == size else ""
