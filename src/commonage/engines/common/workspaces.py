"""Where a workload works: a folder for each user, and in it one for each job that came with files.

    workspaces/<user>/                      0700, the HOME of all that the user runs
    workspaces/<user>/jobs/<workload id>/   the files sent along with a job, and its working directory

Used by the engines, in threads. The folders are one account's: they keep users apart by name, not by
permission.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path, PurePosixPath

from commonage.domain.errors import EngineFailure
from commonage.domain.folders import folder_name

__all__ = ["folder_name", "make_workspace", "unpack_bundle"]

_MIB = 1024 * 1024
_CHUNK = 1 << 20
_FILES_MAX = 100_000


def make_workspace(root: Path, user: str) -> Path:
    """The user's folder, made when missing. Raises EngineFailure when it cannot be."""
    folder = root / folder_name(user)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"the workspace {folder} cannot be made: {error.strerror}"
        raise EngineFailure(message, retryable=True) from error
    return folder


def unpack_bundle(bundle: Path, folder: Path, limit_mib: int) -> None:
    """Unpack files sent along (tar.gz) into `folder`, over what is there. Raises EngineFailure for what is not right.

    Only plain files and folders, below `folder`, and no more than the limit. Not by tarfile's own filters,
    which are missing in the Python of some releases that we support.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        left = limit_mib * _MIB
        with tarfile.open(bundle, "r|gz") as archive:
            for count, member in enumerate(archive):
                left -= member.size
                if left < 0 or count >= _FILES_MAX:
                    raise EngineFailure(
                        f"the files sent along are more than {limit_mib} MiB or {_FILES_MAX} files when unpacked; "
                        "put large data into your workspace instead"
                    )
                _unpack_member(archive, member, folder)
    except (tarfile.TarError, EOFError) as error:
        raise EngineFailure(f"the files sent along cannot be unpacked: {error}") from error
    except OSError as error:
        raise EngineFailure(f"the files sent along cannot be unpacked: {error}", retryable=True) from error


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    parts = [part for part in PurePosixPath(member.name).parts if part != "."]
    if member.name.startswith("/") or ".." in parts:
        raise EngineFailure(f"the files sent along want to leave their folder: {member.name[:100]}")
    target = folder.joinpath(*parts)
    if not target.parent.resolve().is_relative_to(folder.resolve()) and parts:
        raise EngineFailure(f"the files sent along want to leave their folder: {member.name[:100]}")
    if member.isdir():
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    source = archive.extractfile(member) if member.isfile() else None
    if source is None or not parts:
        raise EngineFailure(f"the files sent along hold a link or a device: {member.name[:100]}")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o700 if member.mode & 0o100 else 0o600
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with source, os.fdopen(descriptor, "wb") as file:
        while chunk := source.read(_CHUNK):
            file.write(chunk)
