"""Puts a job's folder into its owner's workspace from outside, while containers may write to that workspace.

If a container could make the server follow a link, it could write anywhere with the server's rights. So the files are
unpacked where no container sees them, and moved in as a whole, by open folders and names, never by a path. Called by
the engines, in threads.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.files.control_folder import Owner, give
from commonage.files.safe_path import SafePath


def put_bundle(workspace: SafePath, name: str, staging: Path, owner: Owner, unpack: Callable[[Path], None]) -> None:
    """Put the files of a bundle in `workspace`/jobs/`name`; an existing folder stays unchanged.

    `staging` is a private folder of the server, which `unpack` fills. Raises EngineFailure.
    """
    jobs = workspace / "jobs"
    try:
        if jobs.make_folder():
            give(jobs, owner)
        if (jobs / name).exists():
            return
        shutil.rmtree(staging, ignore_errors=True)
        unpack(staging)
        _give_all(staging, owner)
        try:
            _move_in(staging, jobs / name, owner)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        # A link or a file in its place was made by its owner, and is not a temporary error.
        passes = error.errno not in (errno.ELOOP, errno.ENOTDIR)
        raise EngineFailure(
            f"the folder of the job cannot be made in {workspace}: {error}", retryable=passes
        ) from error


def _give_all(folder: Path, owner: Owner) -> None:
    if owner.outside_uid != os.geteuid():
        for parent, _, files in os.walk(folder):
            for one in (".", *files):
                os.chown(Path(parent, one), owner.outside_uid, owner.outside_gid, follow_symlinks=False)


def _move_in(folder: Path, target: SafePath, owner: Owner) -> None:
    """Move a folder in atomically; an existing one stays. On another file system it is copied."""
    try:
        SafePath(folder.parent, (folder.name,)).move(target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            _copy_in(folder, target, owner)
        elif error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def _copy_in(folder: Path, target: SafePath, owner: Owner) -> None:
    new = target.parent / f".{target.name}.{secrets.token_hex(6)}"
    try:
        _copy(folder, new, owner)
        new.move(target)
    except OSError as error:
        new.remove()
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def _copy(folder: Path, new: SafePath, owner: Owner) -> None:
    """Copies plain files and folders only, which is all that a bundle has."""
    waiting = [(folder, new)]
    while waiting:
        folder, new = waiting.pop()
        new.make_folder()
        give(new, owner)
        for one in os.scandir(folder):
            if one.is_dir(follow_symlinks=False):
                waiting.append((Path(one.path), new / one.name))
            else:
                _copy_file(one, new / one.name)
                give(new / one.name, owner)


def _copy_file(file: os.DirEntry[str], new: SafePath) -> None:
    mode = file.stat(follow_symlinks=False).st_mode & 0o700
    descriptor = new.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as target, open(file.path, "rb") as source:
        shutil.copyfileobj(source, target)
