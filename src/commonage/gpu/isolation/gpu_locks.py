"""Claims GPUs for one Commonage server of this node, so that two servers never allocate the same GPU.

The first server that opens a GPU holds a lock on a file named after it for the lifetime of its process; the kernel
releases it however the process ends. The locks are node-wide, because two servers have two data folders. Used by
`devices.IsolatedDevices`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable
from pathlib import Path

from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import GpuLockFailed, GpuTakenByOtherServer

_PLACES = (Path("/run/lock"), Path("/tmp"))  # noqa: S108  # locks of a node, without content to protect


class GpuLocks:
    """The locks of this process, on a file in each of `folders`. `says` is shown to others, like its data folder.

    It locks in all folders that this user can use: root and others do not have the same ones, but have one in common.
    """

    def __init__(self, says: str, *folders: Path) -> None:
        self._says = says
        self._folders = folders or _PLACES
        self._held: dict[str, list[int]] = {}

    def claim(self, uuid: str) -> Reason | None:
        """Claim the GPU. Returns why it cannot be claimed. Idempotent."""
        if uuid in self._held:
            return None
        name = f"commonage-gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)[:100]}.lock"
        taken: list[int] = []
        why: Reason | None = None
        for path in (folder / name for folder in self._folders):
            try:
                descriptor = _open(path)
            except OSError as error:
                why = GpuLockFailed(path=str(path), error=error.strerror or str(error))
                continue
            taken.append(descriptor)
            if not self._lock(descriptor):
                holder = os.read(descriptor, 1000).decode("utf-8", "replace").strip()
                _close(taken)
                return GpuTakenByOtherServer(holder=holder)
        if taken:
            self._held[uuid] = taken
        return None if taken else why

    def _lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        with contextlib.suppress(OSError):  # another user's file: the lock holds, only the holder's name is not written
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}, {self._says}\n".encode(), 0)
        return True

    def close(self) -> None:
        """Release all claims. Idempotent."""
        while self._held:
            _close(self._held.popitem()[1])


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except PermissionError:  # made by another user: a lock needs only read access
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    return descriptor
