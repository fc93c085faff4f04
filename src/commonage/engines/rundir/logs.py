"""Reads the output of runs while it is written, and limits its disk space, however fast it is written.

A log is a plain file that the program itself appends to, so it needs no process of the control plane. For a log beyond
the limit the start and the end are kept. The middle becomes a hole in the file, so offsets stay the same and reading
continues after it. A note in the log says so.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Generic, TypeVar

from commonage.domain.errors import EngineFailure
from commonage.domain.iterations import Iterations
from commonage.domain.reasons.attempts import LogTruncated
from commonage.domain.statuses import LogLine, Phase
from commonage.engines.rundir.run import EngineRun, RunTable
from commonage.engines.rundir.tasks import InThread
from commonage.files.safe_path import SafePath

LINE_MAX = 16 * 1024
"""Bytes of a line that are shown; a longer line is cut with a note."""

_CHUNK = 64 * 1024
_POLL_MIN_S, _POLL_MAX_S = 0.1, 0.4
_MIB = 1024 * 1024
_LOOK_BACK = 64 * _MIB


class Lines:
    """Cuts bytes into lines. `position` is the offset after the last line returned."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._rest = b""
        self._dropped = 0  # bytes of the current line beyond what is shown

    def feed(self, data: bytes) -> Iterator[LogLine]:
        *whole, rest = data.split(b"\n")
        for part in whole:
            yield self._line(part, 1)
        self._keep(rest)

    def skip_to(self, position: int) -> None:
        """Declare that the next data starts at `position`: if that is further on, the bytes in between are skipped."""
        if position > self.position + len(self._rest) + self._dropped:
            self.position, self._rest, self._dropped = position, b"", 0

    def overwritten(self) -> Iterator[LogLine]:
        """Yield the latest state of a progress bar, which returns to the start of its line repeatedly."""
        end = self._rest.rfind(b"\r")
        if end <= 0 or self._dropped:
            return
        shown, self._rest = self._rest[:end], self._rest[end + 1 :]
        self.position += end + 1
        yield LogLine(_text(shown, 0), self.position)

    def last(self) -> Iterator[LogLine]:
        """Yield the unterminated last line, if any."""
        if self._rest or self._dropped:
            yield self._line(b"", 0)

    def _keep(self, part: bytes) -> None:
        room = max(0, LINE_MAX - len(self._rest))
        self._dropped += max(0, len(part) - room)
        self._rest += part[:room]

    def _line(self, part: bytes, ending: int) -> LogLine:
        self._keep(part)
        self.position += len(self._rest) + self._dropped + ending
        line = LogLine(_text(self._rest, self._dropped), self.position)
        self._rest, self._dropped = b"", 0
        return line


def _text(raw: bytes, dropped: int) -> str:
    """Text that a terminal would show: only what follows the last carriage return."""
    text = raw.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    return f"{text} … ({dropped} more bytes in this line)" if dropped else text


def open_log(places: Iterable[SafePath]) -> int | None:
    """A descriptor of the log in the first of these places that has one; None if none has.

    The log moves from the first place to the next while this looks: what is gone here is there. Raises EngineFailure if
    the file is not a log.
    """
    for place in places:
        try:
            return place.open(os.O_RDONLY)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise EngineFailure(
                f"the log {place} cannot be read: {error.strerror}; check whether it was replaced"
            ) from error
    return None


async def read_log(
    descriptor: int, offset: int, tail: int | None, follow: bool, has_ended: Callable[[], bool]
) -> AsyncGenerator[LogLine]:
    """Lines from byte `offset`, or the last `tail` of them; closes the descriptor.

    With `follow` until `has_ended` and all was read.
    """
    try:
        if tail is not None:
            offset = max(offset, await asyncio.to_thread(_tail_offset, descriptor, tail))
        lines, position, pause = Lines(offset), offset, _POLL_MIN_S
        while True:
            # Asked before reading, so that everything written before the end is certainly read.
            ended = has_ended()
            data, position = await asyncio.to_thread(_read, descriptor, position)
            if data:
                lines.skip_to(position - len(data))
                for line in lines.feed(data):
                    yield line
                pause = _POLL_MIN_S
                continue
            if ended or not follow:
                for line in lines.last():
                    yield line
                return
            for line in lines.overwritten():
                yield line
            await asyncio.sleep(pause)
            pause = min(_POLL_MAX_S, pause * 1.5)
    finally:
        os.close(descriptor)


def _read(descriptor: int, position: int) -> tuple[bytes, int]:
    """Return a chunk at `position`, or after the hole that begins there, and the position after it."""
    try:
        position = os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError:  # no data after it
        return b"", position
    data = os.pread(descriptor, _CHUNK, position)
    return data, position + len(data)


def _tail_offset(descriptor: int, count: int) -> int:
    """Return the byte at which the last `count` lines begin; an unterminated last line counts as one.

    The search backwards is limited: the writer of the log can make it look as large as any disk.
    """
    end = os.fstat(descriptor).st_size
    if count <= 0 or end == 0:
        return end
    position, found, first = end, 0, max(0, end - _LOOK_BACK)
    # A newline at the very end closes the last line; it does not begin another.
    wanted = count + 1 if os.pread(descriptor, 1, end - 1) == b"\n" else count
    while position > first:
        start = max(first, position - _CHUNK)
        data = os.pread(descriptor, position - start, start)
        at = len(data)
        while (at := data.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == wanted:
                return start + at + 1
        position = start
    return first


PAUSE_S = 0.5
_PAUSE_FACTOR = 10  # the pause between two looks is at least this many times the duration of one
_BLOCK = 4096
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_log = logging.getLogger(__name__)


R = TypeVar("R", bound=EngineRun)


class LogLimit(Generic[R]):
    """Limits the logs of all attempts on a run table to `max_mib` each."""

    def __init__(self, table: RunTable[R], max_mib: int, in_thread: InThread) -> None:
        self._table = table
        self._max_mib = max_mib
        self._in_thread = in_thread
        self._troubled: set[str] = set()  # attempts whose log cannot be limited; logged once

    async def keep(self, iterations: Iterations) -> None:
        """Loop forever. A log exceeds the limit by what is written between two checks."""
        while True:
            began = perf_counter()
            for run in await self._in_thread(partial(self._cut_all, list(self._table))):
                self._tell(run)
            with iterations.rest():
                await asyncio.sleep(max(PAUSE_S, _PAUSE_FACTOR * (perf_counter() - began)))

    async def cut(self, run: R) -> None:
        """Cut the log of an ended attempt: it may have written much since the last check."""
        await self._in_thread(partial(self._cut_all, [run]))

    def _cut_all(self, runs: Iterable[R]) -> list[R]:
        """Cut the logs that are beyond the limit. Returns their attempts."""
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
