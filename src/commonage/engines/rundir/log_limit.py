"""Limits the disk space of logs while they are written, however fast that is.

For a log beyond the limit the start and the end are kept. The middle becomes a hole in the file, so offsets stay the
same. A note in the log says so. Used by the engines.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from commonage.domain.iterations import Iterations
from commonage.domain.reasons.attempts import LogTruncated
from commonage.domain.statuses import Phase
from commonage.engines.rundir.runs import RunFolder
from commonage.engines.rundir.table import InThread, RunTable, TrackedRun
from commonage.files.safe_path import SafePath

PAUSE_S = 0.5
_PAUSE_FACTOR = 10  # the pause between two looks is at least this many times the duration of one
_MIB = 1024 * 1024
_BLOCK = 4096
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_log = logging.getLogger(__name__)


class RunWithLog(TrackedRun, Protocol):
    """An attempt with a log."""

    folder: RunFolder

    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=RunWithLog)


class LogLimit(Generic[R]):
    """Limits the logs of all attempts on a run table to `max_mib` each."""

    def __init__(self, table: RunTable[R], max_mib: int, in_thread: InThread) -> None:
        self._table = table
        self._max_mib = max_mib
        self._in_thread = in_thread
        self._troubled: set[str] = set()  # attempts whose log cannot be limited; logged once

    async def keep(self, iterations: Iterations) -> None:
        """Loop forever. A log exceeds the limit by what is written between two looks."""
        while True:
            began = perf_counter()
            for run in await self._in_thread(partial(self._cut_all, list(self._table))):
                self._tell(run)
            with iterations.rest():
                await asyncio.sleep(max(PAUSE_S, _PAUSE_FACTOR * (perf_counter() - began)))

    async def cut(self, run: R) -> None:
        """Cut the log of an ended attempt: it may have written much since the last look."""
        await self._in_thread(partial(self._cut_all, [run]))

    def _cut_all(self, runs: Iterable[R]) -> list[R]:
        """Return the attempts whose logs were beyond the limit and are cut now."""
        return [run for run in runs if self._cut(run)]

    def _cut(self, run: R) -> bool:
        try:
            was_cut = cut_log(run.folder.log, self._max_mib)
        except FileNotFoundError:  # nothing printed yet
            return False
        except OSError as error:
            if run.id not in self._troubled:
                _log.warning("cannot hold the log of %s within its limit: %s", run.id, error)
            self._troubled.add(run.id)
            return False
        self._troubled.discard(run.id)
        return was_cut

    def _tell(self, run: R) -> None:
        if run.status.phase is Phase.RUNNING:
            self._table.tell(run, replace(run.status, reason=LogTruncated(limit_mib=self._max_mib)))


def cut_log(place: SafePath, max_mib: int) -> bool:
    """Cut the middle out of a log that takes more than `max_mib` of disk; True if it did. Raises OSError.

    An eighth of the limit is kept at the start, three eighths at the end.
    """
    most = max_mib * _MIB
    descriptor = place.open(os.O_WRONLY)  # opening makes a network file system refresh its data; stat alone would not
    try:
        status = os.fstat(descriptor)
        begin = most // 8
        end = (status.st_size - most * 3 // 8) // _BLOCK * _BLOCK
        if status.st_blocks * 512 <= most:
            return False
        if end > begin:
            _leave_out(descriptor, begin, end, status.st_size)
            # The note replaces the last bytes of the start, so that it takes no space in the hole.
            note = f"\n[commonage: {end - begin:>15} bytes are left out here: a log takes at most {max_mib} MiB]\n"
            os.pwrite(descriptor, note.encode(), begin - len(note))
        after = os.fstat(descriptor)
        # Releases space that the workload reserved past the end. Not while it writes, because its last bytes would be
        # lost.
        if after.st_size == status.st_size and after.st_blocks * 512 > most:
            os.ftruncate(descriptor, after.st_size)
        return True
    finally:
        os.close(descriptor)


def _leave_out(descriptor: int, begin: int, end: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not libc.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(end - begin)):
        return
    code = ctypes.get_errno()
    if code != errno.EOPNOTSUPP:
        raise OSError(code, os.strerror(code))
    # The file system cannot make holes in existing data (NFS before 4.2): the end is lost too; offsets stay the same.
    os.ftruncate(descriptor, begin)
    os.ftruncate(descriptor, size)
