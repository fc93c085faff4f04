"""Names of folders for names of people and tenants, the same wherever one is made: no two names share one."""

from __future__ import annotations

import hashlib
import re

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


def folder_name(user: str) -> str:
    """A folder name for any user name.

    The name itself where it is plain, else one that no plain name can be.
    """
    if _PLAIN.fullmatch(user):
        return user
    readable = re.sub(r"[^a-z0-9._-]+", "-", user.lower()).strip("-.")[:40]
    return f"{readable}~{hashlib.sha256(user.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
