"""Room that is kept free for the platform itself: a file in the data folder that is given up when the disk is full.

Whoever fills the disk to the last byte could not sign in any more, nor start the session to delete something in: hub
and control plane have to write a little for that. So a file of some size is there while all is well. When the disk is
full, part of it goes, and again when that is used up; who fills the disk in one go leaves the rest to us. It is made
anew once there is room. Run by the server; nothing but the file is touched.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from commonage.domain.quantities import format_memory
from commonage.domain.turns import Turns

log = logging.getLogger(__name__)
_MIB = 1024 * 1024
_EVERY_S = 0.5
_FULL_BYTES = 256 * 1024


def why_full(folder: Path) -> str:
    """That nothing can be written in this folder any more, in words; empty while that is not so, or unknown."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    if free >= _FULL_BYTES:
        return ""
    return f"the disk of {folder} is full; nothing new can be kept until there is room again"


@dataclass(frozen=True, slots=True)
class Reserve:
    """The file `path`, of `size_mib` while all is well (0: none is kept).

    With less than `least_mib` free a portion of `portion_mib` is given up. It grows back once its whole size and
    `ample_mib` are free besides, so that it never makes a disk full that is not.
    """

    path: Path
    size_mib: int
    portion_mib: int = 16
    least_mib: int = 4
    ample_mib: int = 64
    turns: Turns = field(default_factory=lambda: Turns("reserve", time.time))

    async def run(self) -> None:
        """Look on until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.look)
            except OSError as error:  # the folder is away, or read-only: that is for others to tell
                log.debug("the reserve cannot be seen to: %s", error)
            with self.turns.rest():
                await asyncio.sleep(_EVERY_S)

    def look(self) -> None:
        """Give up a portion, or grow, as the disk is now. Raises OSError."""
        if self.relieve():
            return
        kept, free = self.kept_mib, shutil.disk_usage(self.path.parent).free // _MIB
        if kept < self.size_mib and free >= self.size_mib - kept + self.ample_mib:
            self._grow()
            log.info("there is room on the disk of %s: the reserve is whole again", self.path.parent)
        elif kept > self.size_mib:
            self._cut(self.size_mib)

    def relieve(self) -> bool:
        """Give up a portion if the disk is full and there is one left; True if that was so. Raises OSError."""
        kept, free = self.kept_mib, shutil.disk_usage(self.path.parent).free // _MIB
        if free >= self.least_mib or not kept:
            return False
        self._cut(max(0, kept - self.portion_mib))
        left = format_memory(self.kept_mib) if self.kept_mib else "nothing"
        log.warning("the disk of %s is full: gave up a part of the reserve, %s is left", self.path.parent, left)
        return True

    @property
    def kept_mib(self) -> int:
        """How much it holds now."""
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
