"""Workspaces: a folder for each user, and in it one for each job that came with files.

    workspaces/<user>/                      0700, the HOME of all workloads of the user
    workspaces/<user>/jobs/<workload id>/   the files sent along with a job, and its working directory

    workspaces/<user>/volumes/<name>        a link to each volume, on every engine

One account owns all folders: they keep users apart by name, not by permission. Used by the engines, in threads.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

from commonage.domain.errors import EngineFailure
from commonage.domain.volumes import folder_name
from commonage.domain.workloads import is_workload_id
from commonage.files.safe_path import SafePath

_log = logging.getLogger(__name__)

__all__ = ["FOLDER", "clear_job_folders", "folder_name", "link_volumes", "make_workspace", "note_job_end"]

FOLDER = "volumes"
"""The folder of links to volumes in a workspace."""
_JOBS = "jobs"


def make_workspace(root: SafePath, user: str) -> SafePath:
    """Return the user's folder, created if missing. Raises EngineFailure if it cannot be created."""
    folder = root / folder_name(user)
    try:
        folder.make_folder(parents=True)
    except OSError as error:
        message = f"the workspace {folder} cannot be made: {error.strerror}"
        # An object in its place stays until it is removed by hand.
        raise EngineFailure(message, retryable=error.errno != errno.ENOTDIR) from error
    return folder


def note_job_end(root: SafePath, user: str, workload_id: str) -> None:
    """Let the job's folder count as used until now. A job without a folder, or a broken one, is no error."""
    with suppress(OSError), (root / folder_name(user) / _JOBS / workload_id).folder() as folder:
        os.utime(folder)


def clear_job_folders(root: SafePath, before: float, live: Collection[str]) -> int:
    """Remove the folders of jobs that were last used before a time, except those of `live` workloads.

    Users may write to their home: no link in it is followed, and what cannot be read or removed is logged and stays.
    Returns the number of removed folders. Raises OSError if `root` cannot be read.
    """
    removed = 0
    for user in root.list_names() if root.is_folder() else ():
        jobs = root / user / _JOBS
        with _logged(jobs):
            for name in jobs.list_names() if jobs.is_folder() else ():
                folder = jobs / name
                if name in live or not is_workload_id(name):
                    continue
                with _logged(folder):
                    if folder.is_folder() and folder.stat().st_mtime < before:
                        folder.remove()
                        removed += 1
    return removed


@contextmanager
def _logged(folder: SafePath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log.warning("cannot clean up the job folder %s: %s", folder, error.strerror or error)


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
            (home / FOLDER).chown(uid, gid)
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
