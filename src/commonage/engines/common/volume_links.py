"""Links to volumes in a user's home: `~/volumes/NAME` leads to the volume, whatever the engine.

A convenience, and never a reason not to start something: on a full disk there is no link. The home is its owner's to
write to, so nothing of it is followed: all is done by open folders and names. Used by engines, in threads.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from commonage.files.beneath import Beneath

FOLDER = "volumes"


def link_volumes(home: Beneath, places: Mapping[str, str], uid: int, gid: int) -> None:
    """Have `home`/volumes/NAME lead to each place, by volume's name. What is there and is no link stays as it is.

    `uid`, `gid`: whose the folder and the links are where we may say so.
    """
    if not places:
        return
    with suppress(OSError):
        if (home / FOLDER).make_folder() and uid != os.geteuid():
            (home / FOLDER).give(uid, gid)
        with (home / FOLDER).folder() as folder:
            for name, place in places.items():
                with suppress(OSError):
                    _link(name, place, folder, uid, gid)


def _link(name: str, place: str, folder: int, uid: int, gid: int) -> None:
    try:
        if not stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return
        if os.readlink(name, dir_fd=folder) == place:
            return
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    os.symlink(place, name, dir_fd=folder)
    if uid != os.geteuid():
        os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
