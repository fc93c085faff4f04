"""Copies the output of Pods into the run folders, where readers find it as on other engines.

The cluster serves the output of a container only while its Pod is there, and of a long one only the last file: the
node's kubelet begins a new file after 10 MiB, as is usual. So a running attempt's output is followed. After an
interruption it continues from the last time stamp; if the file with that is gone, a note in the log says that a part is
missing. Lines reach the log when they are complete, or 16 KiB long.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from commonage.domain.errors import EngineFailure
from commonage.engines.rundir.runs import RunFolder
from commonage.engines.rundir.tasks import InThread

Fetch = Callable[[str | None, bool], AsyncGenerator[bytes]]
"""The output from a time stamp on (None: from the start), and whether to follow it to the end."""
_STAMP_MAX = 40
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.5, 30.0
_TRIES, _TRY_S = 3, 10.0
_END_S = 2.0
MISSING = b"[commonage: a part of the output is missing here: its node no longer had it]\n"
UNREAD = b"[commonage: the last part of the output is missing: its node does not give it]\n"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class LogPosition:
    """How far a log was copied: bytes of the file, the last line's time stamp, and how many lines have that."""

    size: int = 0
    stamp: str = ""
    count: int = 0


class StampedLines:
    """Takes lines with time stamps, and gives the bytes that were not copied yet."""

    def __init__(self, position: LogPosition) -> None:
        self._position = position
        self._known = LogPosition(0, position.stamp, position.count)
        self._seen = 0
        self._is_first = True
        self._head: bytes | None = b""
        """The beginning of a line, until its time stamp is complete; None within a line."""
        self._skips = False

    def feed(self, data: bytes) -> bytes:
        out = bytearray()
        while data:
            if self._head is not None:
                stamp, space, rest = (self._head + data).partition(b" ")
                if not space and len(stamp) < _STAMP_MAX:
                    self._head = stamp
                    break
                self._begin(stamp.decode("ascii", "replace"), out)
                data, self._head = rest, None
            line, newline, data = data.partition(b"\n")
            if not self._skips:
                out += line + newline
            if newline:
                self._head = b""
        self._position.size += len(out)
        return bytes(out)

    def _begin(self, stamp: str, out: bytearray) -> None:
        known, position = self._known, self._position
        if self._is_first and known.stamp and _order(stamp) > _order(known.stamp):
            out += MISSING
        self._is_first = False
        self._skips = False
        if known.stamp and _order(stamp) < _order(known.stamp):
            self._skips = True
        elif stamp == known.stamp and known.stamp:
            self._seen += 1
            self._skips = self._seen <= known.count
        if self._skips:
            return
        position.count = position.count + 1 if stamp == position.stamp else 1
        position.stamp = stamp


def _order(stamp: str) -> tuple[str, str]:
    """Sorts stamps whose fractions have different lengths."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return whole, fraction


class LogCopy:
    """The copy of one attempt's output. `follow` runs as a task of the engine, `finish` after the end."""

    def __init__(self, folder: RunFolder, fetch: Fetch, in_thread: InThread) -> None:
        self._folder = folder
        self._fetch = fetch
        self._in_thread = in_thread
        self._lock = asyncio.Lock()
        self._position: LogPosition | None = None
        self._is_whole = False
        self._is_ending = False

    async def follow(self) -> None:
        """Copy while the attempt runs, or until cancelled."""
        pause = _PAUSE_MIN_S
        while not self._is_ending:
            try:
                async with self._lock:
                    if await self._copy(follow=True):
                        pause = _PAUSE_MIN_S
            except (EngineFailure, OSError) as error:
                _log.info("the output of %s cannot be read now, will try again: %s", self._folder.path.name, error)
            if not self._is_ending:
                await asyncio.sleep(pause)
            pause = min(_PAUSE_MAX_S, pause * 2)

    async def finish(self, following: asyncio.Task[None] | None) -> None:
        """Copy the rest of an ended attempt's output. What cannot be read is noted in the log. Raises OSError.

        The stream of a task that follows it ends by itself, soon after the program.
        """
        if self._is_whole:
            return
        self._is_ending = True
        if following is not None:
            if self._lock.locked():
                await asyncio.wait([following], timeout=_END_S)
            following.cancel()
            await asyncio.wait([following])
        async with self._lock:
            for _ in range(_TRIES):
                try:
                    async with asyncio.timeout(_TRY_S):
                        await self._copy(follow=False)
                    break
                except (EngineFailure, TimeoutError) as error:
                    failure = error
                    await asyncio.sleep(_PAUSE_MIN_S)
            else:
                _log.warning("the end of the output of %s cannot be read: %s", self._folder.path.name, failure)
                await self._in_thread(lambda: self._append(UNREAD, LogPosition()))
            self._is_whole = True

    async def _copy(self, *, follow: bool) -> bool:
        """Return whether anything new came."""
        if self._position is None:
            self._position = await self._in_thread(self._read_position)
        position = self._position
        lines = StampedLines(position)
        before = position.size
        async with aclosing(self._fetch(position.stamp or None, follow)) as chunks:
            async for chunk in chunks:
                if new := lines.feed(chunk):
                    await self._write(new, position)
        return position.size > before

    async def _write(self, data: bytes, position: LogPosition) -> None:
        """Append all of it even if cancelled: there must be no other writer meanwhile."""
        writing = asyncio.ensure_future(self._in_thread(lambda: self._append(data, position)))
        try:
            await asyncio.shield(writing)
        except OSError:
            self._position = None  # read again from the disk, which has what was written
            raise
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    # --- on disk, in threads ---------------------------------------------------------------------------------------

    def _append(self, data: bytes, position: LogPosition) -> None:
        descriptor = self._folder.log.open(os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            file.write(data)
        if position.stamp:
            words = json.dumps([position.size, position.stamp, position.count]).encode()
            (self._folder.path / "copied").write_bytes(words)

    def _read_position(self) -> LogPosition:
        """Read how far it was copied. What a crash left without a position is cut off, and copied again."""
        try:
            size, stamp, count = json.loads((self._folder.path / "copied").read_bytes())
        except (FileNotFoundError, ValueError):
            size, stamp, count = 0, "", 0
        descriptor = self._folder.log.open(os.O_WRONLY | os.O_CREAT)
        with os.fdopen(descriptor, "wb") as file:
            if os.fstat(file.fileno()).st_size > size:
                os.ftruncate(file.fileno(), size)
        return LogPosition(size, stamp, count)
