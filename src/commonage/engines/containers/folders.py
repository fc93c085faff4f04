"""A job's folder in its owner's workspace, put there from outside while containers may write to that workspace.

A container that could have us follow a link of its making would write where it likes, as we are. So the files are
unpacked where no container sees them, and moved in whole, by open folders and names, never by a path. In threads.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.engines.common.workspaces import unpack_bundle
from commonage.engines.containers.box import Owner, give

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def put_bundle(bundle: Path, staging: Path, workspace: Path, name: str, owner: Owner, limit_mib: int) -> None:
    """Have the files of `bundle` in `workspace`/jobs/`name`; a folder that is there already stays as it is.

    `staging` is a folder of ours to unpack in, on the same file system. Raises EngineFailure.
    """
    try:
        with _jobs_folder(workspace, owner) as jobs:
            if jobs.has(name):
                return
            shutil.rmtree(staging, ignore_errors=True)
            unpack_bundle(bundle, staging, limit_mib)
            for parent, _, files in os.walk(staging):
                for one in (".", *files):
                    give(Path(parent, one), owner)
            jobs.take(staging, name)
    except OSError as error:
        # A link or a file in its place is of its owner's making, and does not pass by itself.
        passes = error.errno not in (errno.ELOOP, errno.ENOTDIR)
        raise EngineFailure(
            f"the folder of the job cannot be made in {workspace}: {error}", retryable=passes
        ) from error


class _JobsFolder:
    """The open folder `jobs` of a workspace."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> _JobsFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def has(self, name: str) -> bool:
        """True if there is something of this name."""
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def take(self, folder: Path, name: str) -> None:
        """Move a folder in; one that came first stays."""
        try:
            os.rename(folder, name, dst_dir_fd=self._descriptor)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            shutil.rmtree(folder, ignore_errors=True)


def _jobs_folder(workspace: Path, owner: Owner) -> _JobsFolder:
    parent = os.open(workspace, _FOLDER)
    try:
        try:
            os.mkdir("jobs", 0o700, dir_fd=parent)
        except FileExistsError:
            made = False
        else:
            made = True
        descriptor = os.open("jobs", _FOLDER, dir_fd=parent)  # OSError if it is a link
        if made and owner.outside_uid != os.geteuid():
            os.fchown(descriptor, owner.outside_uid, owner.outside_gid)
        return _JobsFolder(descriptor)
    finally:
        os.close(parent)
