"""Maps names of users and tenants to folder names. The mapping is stable, and no two names share a folder."""

from __future__ import annotations

import hashlib
import re

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


def folder_name(user: str) -> str:
    """A folder name for any user name.

    A plain name maps to itself; any other name maps to a folder name that no plain name can have.
    """
    if _PLAIN.fullmatch(user):
        return user
    readable = re.sub(r"[^a-z0-9._-]+", "-", user.lower()).strip("-.")[:40]
    return f"{readable}~{hashlib.sha256(user.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
