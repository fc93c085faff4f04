"""Reading the output of runs while it is written, and keeping it within bounds.

A log is a plain file, appended to by the program itself, so that it needs nobody of ours to go on. Of a long
one the oldest part is given back to the file system as a hole: offsets stay what they were, and reading
begins behind it. Used by the engines.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

from commonage.domain.sightings import LogLine

LINE_MAX = 16 * 1024
"""Bytes of a line that are shown; what is cut off is said."""

_CHUNK = 64 * 1024
_BLOCK = 4096
_POLL_MIN_S, _POLL_MAX_S = 0.1, 0.4
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_MIB = 1024 * 1024
_LOOK_BACK = 64 * _MIB


class Lines:
    """Cuts bytes into lines. `position` is the byte behind the last line given out."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._rest = b""
        self._dropped = 0  # bytes of the present line beyond what is shown

    def feed(self, data: bytes) -> Iterator[LogLine]:
        """The lines that end in `data`."""
        *whole, rest = data.split(b"\n")
        for part in whole:
            yield self._line(part, 1)
        self._keep(rest)

    def skip_to(self, position: int) -> None:
        """What is fed next begins at `position`: if that is further on, the bytes between are gone."""
        if position > self.position + len(self._rest) + self._dropped:
            self.position, self._rest, self._dropped = position, b"", 0

    def overwritten(self) -> Iterator[LogLine]:
        """Of a progress bar, which returns to the start of its line again and again, the newest state."""
        end = self._rest.rfind(b"\r")
        if end <= 0 or self._dropped:
            return
        shown, self._rest = self._rest[:end], self._rest[end + 1 :]
        self.position += end + 1
        yield LogLine(_text(shown, 0), self.position)

    def last(self) -> Iterator[LogLine]:
        """The line without an end, if there is one."""
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
    """What a terminal would show of the line: after carriage returns only what came last."""
    text = raw.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    return f"{text} … ({dropped} more bytes in this line)" if dropped else text


async def read_log(
    path: Path, offset: int, tail: int | None, follow: bool, has_ended: Callable[[], bool]
) -> AsyncGenerator[LogLine]:
    """Lines from byte `offset`, or the last `tail` of them.

    With `follow` until `has_ended` and all was read.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if tail is not None:
            offset = max(offset, await asyncio.to_thread(_tail_offset, descriptor, tail))
        lines, position, pause = Lines(offset), offset, _POLL_MIN_S
        while True:
            # Asked before reading: what was written before it ended is then read for certain.
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
    """A chunk at `position`, or behind the hole that begins there; and the position behind it."""
    try:
        position = os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError:  # nothing behind it
        return b"", position
    data = os.pread(descriptor, _CHUNK, position)
    return data, position + len(data)


def _tail_offset(descriptor: int, count: int) -> int:
    """The byte at which the last `count` lines begin; a last line without an end counts as one.

    At most so far back: who writes the log may have it seem to be as large as any disk.
    """
    end = os.fstat(descriptor).st_size
    if count <= 0 or end == 0:
        return end
    position, found, first = end, 0, max(0, end - _LOOK_BACK)
    # The line ending at the very end closes the last line, it does not begin another.
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


def limit_log(path: Path, keep_mib: int) -> None:
    """Give back all but the newest `keep_mib` of a log that has grown to twice that.

    Where holes cannot be, nothing.
    """
    keep = keep_mib * _MIB
    try:
        status = path.stat()
        if status.st_blocks * 512 <= 2 * keep:
            return
        end = (status.st_size - keep) // _BLOCK * _BLOCK
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(end))
    finally:
        os.close(descriptor)
