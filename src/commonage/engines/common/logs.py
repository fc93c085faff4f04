"""Reading the output of runs while it is written.

A log is a plain file, appended to by the program itself, so that it needs nobody of ours to go on. Of a long one the
middle is a hole (see `log_limit`): offsets stay what they were, and reading goes on behind it. Used by the engines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

from commonage.domain.errors import EngineFailure
from commonage.domain.sightings import LogLine
from commonage.files.beneath import Beneath

LINE_MAX = 16 * 1024
"""Bytes of a line that are shown; what is cut off is said."""

_CHUNK = 64 * 1024
_POLL_MIN_S, _POLL_MAX_S = 0.1, 0.4
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


def open_log(places: Iterable[Beneath]) -> int | None:
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
