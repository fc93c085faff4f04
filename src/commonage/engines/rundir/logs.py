"""Reads the output of runs while it is written.

A log is a plain file that the program itself appends to, so it needs no process of the control plane. The middle of a
long log is a hole (see `log_limit`): offsets stay the same, and reading continues after it. Used by the engines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

from commonage.domain.errors import EngineFailure
from commonage.domain.statuses import LogLine
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

    The log moves from the first place to the next while this looks: what is gone here is there. Raises EngineFailure
    for what is no log.
    """
    for place in places:
        try:
            return place.open(os.O_RDONLY)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise EngineFailure(
                f"the log {place} cannot be read: {error.strerror}; look whether somebody replaced it"
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
