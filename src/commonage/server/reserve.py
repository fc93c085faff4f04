"""Disk space reserved for the platform: a file in the data folder that shrinks when the disk is full. A loop.

Hub and control plane write a little at every sign-in and start. Without a reserve, users could not sign in on a full
disk to delete files. The file shrinks by portions, so a process that fills the disk at once does not get all of it. It
grows back once there is space.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from commonage.domain.iterations import Iterations
from commonage.domain.requests import format_memory

log = logging.getLogger(__name__)
_MIB = 1024 * 1024
_EVERY_S = 0.5
_FULL_BYTES = 256 * 1024


def why_full(folder: Path) -> str:
    """The reason if the disk of this folder is full; otherwise, or if unknown, empty."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    if free >= _FULL_BYTES:
        return ""
    return f"the disk of {folder} is full; free some space"


@dataclass(frozen=True, slots=True)
class Reserve:
    """The file `path`, of `size_mib` in normal operation (0: none is kept).

    With less than `min_mib` free, a portion of `portion_mib` is released. It grows back once its whole size and
    another `ample_mib` are free, so that it never fills the disk itself.
    """

    path: Path
    size_mib: int
    portion_mib: int = 16
    min_mib: int = 4
    ample_mib: int = 64
    iterations: Iterations = field(default_factory=lambda: Iterations("reserve", time.time))

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.adjust)
            except OSError as error:  # the folder is missing or read-only: others report that
                log.debug("disk reserve: cannot adjust: %s", error)
            with self.iterations.rest():
                await asyncio.sleep(_EVERY_S)

    def adjust(self) -> None:
        """Release a portion, or grow, depending on the free space. Raises OSError."""
        if self.release():
            return
        kept, free = self.size_now_mib, shutil.disk_usage(self.path.parent).free // _MIB
        if kept < self.size_mib and free >= self.size_mib - kept + self.ample_mib:
            self._grow()
            log.info("disk reserve restored: %s has space again", self.path.parent)
        elif kept > self.size_mib:
            self._cut(self.size_mib)

    def release(self) -> bool:
        """Release a portion if the disk is full and there is one left. Returns whether it did. Raises OSError."""
        kept, free = self.size_now_mib, shutil.disk_usage(self.path.parent).free // _MIB
        if free >= self.min_mib or not kept:
            return False
        self._cut(max(0, kept - self.portion_mib))
        left = format_memory(self.size_now_mib) if self.size_now_mib else "nothing"
        log.warning("disk of %s is full: released a part of the disk reserve, %s left", self.path.parent, left)
        return True

    @property
    def size_now_mib(self) -> int:
        """The current size of the file."""
        try:
            return self.path.stat().st_size // _MIB
        except FileNotFoundError:
            return 0

    def _cut(self, to_mib: int) -> None:
        if to_mib:
            os.truncate(self.path, to_mib * _MIB)
        else:
            self.path.unlink(missing_ok=True)

    def _grow(self) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.size_mib * _MIB)
        finally:
            os.close(descriptor)
