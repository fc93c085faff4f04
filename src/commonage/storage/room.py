"""How many bytes a folder may still take. Used for uploads and for copies of materials."""

from __future__ import annotations

import os

from commonage.files.safe_path import SafePath

_RESERVE_BYTES = 256 * 1024 * 1024  # nodes with less free space take no jobs


def room_in(descriptor: int, above: SafePath) -> int:
    """A disk that is full stops the work of all its users, so it is not filled to the end.

    In a folder with a project quota the kernel reports what that leaves; the folder above has the whole disk.
    """
    room = _free(descriptor)
    with above.open_path() as folder:
        if os.fstat(folder).st_dev == os.fstat(descriptor).st_dev:
            room = min(room, _free(folder) - _RESERVE_BYTES)
    return max(0, room)


def _free(descriptor: int) -> int:
    found = os.fstatvfs(descriptor)
    return found.f_bavail * found.f_frsize
