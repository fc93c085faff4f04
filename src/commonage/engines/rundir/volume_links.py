"""Links to volumes in a user's home: `~/volumes/NAME` leads to the volume, on every engine.

A convenience that never prevents a start: on a full disk there is no link. The owner can write to the home, so no link
in it is followed: everything uses open folders and names. Used by engines, in threads.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from commonage.files.beneath import Beneath

FOLDER = "volumes"


def link_volumes(home: Beneath, places: Mapping[str, str], uid: int, gid: int) -> None:
    """Make `home`/volumes/NAME lead to each place, by the volume's name. An existing name that is not a link is kept.

    `uid`, `gid`: owner of the folder and the links, if the server may set it.
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
