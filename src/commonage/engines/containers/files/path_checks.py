"""Checks the path to a folder to be mounted: only root and the server may be able to change where it leads.

The daemon resolves the path again, as root, whenever it mounts it. So it is not enough that it has no link now: a user
who may write to a folder on the path could add one between our check and the daemon's. Called by engines, in threads.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from commonage.domain.errors import EngineFailure

_NOBODY = 65534
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_path_is_trusted(source: str, what: str) -> None:
    """Raise EngineFailure unless all folders above `source` belong to root or us, and are writable for nobody else.

    Neither it nor one of them may be a link. Missing folders are not checked. The folder itself may belong to anybody.
    """
    path = Path(os.path.normpath(source))
    above = None
    for place in (*reversed(path.parents), path):
        try:
            found = place.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise EngineFailure(f"{what} cannot be looked at: {error.strerror}", retryable=True) from error
        if stat.S_ISLNK(found.st_mode):
            raise EngineFailure(f"{what} leads elsewhere by a link; name the folder itself")
        if above is not None:
            _check_replaceable(place.parent, above, found, what)
        above = found


def _check_replaceable(folder: Path, above: os.stat_result, found: os.stat_result, what: str) -> None:
    # On NFS root may be nobody, and so may the owner of what root creates there.
    trusted = (0, os.geteuid(), _NOBODY)
    if above.st_uid not in trusted:
        why = f"belongs to user {above.st_uid}"
    elif not above.st_mode & _OTHERS_WRITE or (above.st_mode & stat.S_ISVTX and found.st_uid in trusted):
        return
    else:
        why = f"is for others to write to ({stat.S_IMODE(above.st_mode):o})"
    raise EngineFailure(
        f"{what} could be made to lead elsewhere: {folder}, on the way to it, {why}; have it belong to root and take "
        "others' right to write to it away, or put the folder elsewhere"
    )
