"""Workspaces: a folder for each user, and in it one for each job that came with files.

    workspaces/<user>/                      0700, the HOME of all workloads of the user
    workspaces/<user>/jobs/<workload id>/   the files sent along with a job, and its working directory

Used by the engines, in threads. One account owns all folders: they keep users apart by name, not by
permission.
"""

from __future__ import annotations

import errno

from commonage.domain.errors import EngineFailure
from commonage.domain.folders import folder_name
from commonage.files.beneath import Beneath

__all__ = ["folder_name", "make_workspace"]


def make_workspace(root: Beneath, user: str) -> Beneath:
    """Return the user's folder, created if missing. Raises EngineFailure if it cannot be created."""
    folder = root / folder_name(user)
    try:
        folder.make_folder(parents=True)
    except OSError as error:
        message = f"the workspace {folder} cannot be made: {error.strerror}"
        # An object in its place stays there until somebody removes it.
        raise EngineFailure(message, retryable=error.errno != errno.ENOTDIR) from error
    return folder
