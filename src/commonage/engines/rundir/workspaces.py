"""Workspaces: a folder for each user, and in it one for each job that came with files.

    workspaces/<user>/                      0700, the HOME of all workloads of the user
    workspaces/<user>/jobs/<workload id>/   the files sent along with a job, and its working directory

    workspaces/<user>/volumes/<name>        a link to each volume, on every engine

One account owns all folders: they keep users apart by name, not by permission. Used by the engines, in threads.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from commonage.domain.errors import EngineFailure
from commonage.domain.volumes import folder_name
from commonage.files.safe_path import SafePath

__all__ = ["FOLDER", "folder_name", "link_volumes", "make_workspace"]

FOLDER = "volumes"
"""The folder of links to volumes in a workspace."""


def make_workspace(root: SafePath, user: str) -> SafePath:
    """Return the user's folder, created if missing. Raises EngineFailure if it cannot be created."""
    folder = root / folder_name(user)
    try:
        folder.make_folder(parents=True)
    except OSError as error:
        message = f"the workspace {folder} cannot be made: {error.strerror}"
        # An object in its place stays there until somebody removes it.
        raise EngineFailure(message, retryable=error.errno != errno.ENOTDIR) from error
    return folder


def link_volumes(home: SafePath, places: Mapping[str, str], uid: int, gid: int) -> None:
    """Link `home`/volumes/NAME to each place. An existing name that is not a link stays.

    A convenience that never prevents a start: on a full disk there is no link. The owner can write to the home, so no
    link in it is followed: everything uses open folders and names.
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
