"""Project quotas of ext4 and XFS: limits on the disk space of folders that the kernel enforces. Called by `homes`.

A folder gets a project, which new files in it inherit; the project has a limit. Every call blocks briefly, and needs
Linux 5.14 and root.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress

from commonage.domain.reasons.notes import StorageGap
from commonage.files.safe_path import SafePath

OURS = range(0x4000_0000, 0x8000_0000)
"""Projects that we give to folders. One with another project belongs to an admin."""

_QUOTACTL_FD = 443  # the same on all architectures
_PROJECT_QUOTAS = 2
_GET_LIMIT, _SET_LIMIT, _GET_STATE = 0x80_0007, 0x80_0008, 0x5808
_STATE_BYTES, _STATE_VERSION, _FLAGS_AT, _ENFORCED = 256, 1, 2, 1 << 5
_LIMIT = struct.Struct("=8QII")  # hard, soft, used bytes, hard and soft limit of inodes, inodes, two times; valid
_SPACE_IS_VALID = 1

_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C_581F, 0x401C_5820
_ATTRIBUTES = struct.Struct("=5I8x")  # flags, extent size, extents, project, copy-on-write extent size
_INHERIT = 0x200

_libc = ctypes.CDLL(None, use_errno=True)


def gap_of(folder: int) -> StorageGap | None:
    """Why the file system of an open folder cannot enforce limits; None if it can."""
    state = bytearray(_STATE_BYTES)
    state[0] = _STATE_VERSION
    try:
        _quotactl(folder, _GET_STATE, 0, state)
    except OSError:
        return StorageGap.NO_PROJECT_QUOTAS
    if not int.from_bytes(state[_FLAGS_AT : _FLAGS_AT + 2], "little") & _ENFORCED:
        return StorageGap.NO_PROJECT_QUOTAS
    try:
        limit_of(folder, OURS[0])
    except OSError:
        return StorageGap.NOT_PERMITTED
    return None


def limit_of(folder: int, project: int) -> tuple[int, int]:
    """(limit in KiB, 0 for none; used bytes) of a project on the file system of an open folder. Raises OSError."""
    found = bytearray(_LIMIT.size)
    try:
        _quotactl(folder, _GET_LIMIT, project, found)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):  # XFS knows only projects that were used
            return 0, 0
        raise
    hard, _, used, *_ = _LIMIT.unpack(found)
    return hard, used


def set_limit(folder: int, project: int, limit_kib: int) -> None:
    """Limit the project to this space; 0: no limit. Raises OSError."""
    values = bytearray(_LIMIT.pack(limit_kib, 0, 0, 0, 0, 0, 0, 0, _SPACE_IS_VALID, 0))
    _quotactl(folder, _SET_LIMIT, project, values)


def project_of(descriptor: int) -> int:
    """The project of an open file or folder; 0: none. Raises OSError."""
    project: int = _ATTRIBUTES.unpack(_attributes(descriptor))[3]
    return project


def put_in_project(folder: SafePath, project: int) -> None:
    """Put a folder and its content in a project, except files that are gone or replaced by a link meanwhile.

    New files inherit it from the first moment. Files of other file systems below it stay as they are. Raises OSError if
    the folder itself cannot be put in.
    """
    with folder.folder() as descriptor:
        _set_project(descriptor, project, _INHERIT)
        device = os.fstat(descriptor).st_dev
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        with suppress(OSError), place.folder() as descriptor:
            if os.fstat(descriptor).st_dev != device:
                continue
            _set_project(descriptor, project, _INHERIT)
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(place / entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        with suppress(OSError):
                            _put_file(entry.name, descriptor, project)


def put_in_project_of(parent: SafePath, folder: SafePath) -> None:
    """Prepare a folder to be moved into `parent`: the kernel moves nothing into a folder with another project."""
    with suppress(OSError), parent.folder() as descriptor:
        project = project_of(descriptor)
        if project:
            put_in_project(folder, project)


def _put_file(name: str, folder: int, project: int) -> None:
    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(entry).st_mode):  # opening a device or a pipe can have effects
            return
        descriptor = os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_NONBLOCK)
    finally:
        os.close(entry)
    try:
        _set_project(descriptor, project, 0)
    finally:
        os.close(descriptor)


def _set_project(descriptor: int, project: int, more_flags: int) -> None:
    flags, extent_size, extents, before, copy_size = _ATTRIBUTES.unpack(_attributes(descriptor))
    if before != project or flags & more_flags != more_flags:
        new = _ATTRIBUTES.pack(flags | more_flags, extent_size, extents, project, copy_size)
        fcntl.ioctl(descriptor, _SET_ATTRIBUTES, new)


def _attributes(descriptor: int) -> bytes:
    return fcntl.ioctl(descriptor, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))


def _quotactl(folder: int, command: int, project: int, data: bytearray) -> None:
    address = (ctypes.c_char * len(data)).from_buffer(data)
    subcommand = ctypes.c_uint(command << 8 | _PROJECT_QUOTAS)
    arguments = (ctypes.c_uint(folder), subcommand, ctypes.c_uint(project), address)
    if _libc.syscall(ctypes.c_long(_QUOTACTL_FD), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
