"""One end of a pipe or a terminal, read and written without blocking and without read-ahead. Used by `exec`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

_CHUNK_BYTES = 64 * 1024


def settle(waiting: asyncio.Future[None]) -> None:
    """Complete a future that may be done or cancelled already."""
    if not waiting.done():
        waiting.set_result(None)


class Descriptor:
    """A descriptor that this object owns. One reader and one writer at a time."""

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self._number = number
        self._waiting: set[asyncio.Future[None]] = set()
        self._at_once = False
        self.is_closed = False

    async def read(self) -> bytes:
        """Return the next data; empty at the end, and once it is closed."""
        while not self.is_closed:
            try:
                return os.read(self._number, _CHUNK_BYTES)
            except BlockingIOError:
                if self._at_once:
                    break
                loop = asyncio.get_running_loop()
                await self._wait(loop.add_reader, loop.remove_reader)
            except OSError:  # the other side of the terminal is closed
                break
        return b""

    def read_out(self) -> None:
        """Read the rest after all writers are gone."""
        self._at_once = True
        self._wake()

    async def write(self, data: bytes) -> None:
        """Write all data, as space becomes available; data that no process will read is dropped."""
        rest = memoryview(data)
        while rest and not self.is_closed:
            try:
                rest = rest[os.write(self._number, rest) :]
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await self._wait(loop.add_writer, loop.remove_writer)
            except OSError:
                return

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._wake()
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._number)
            loop.remove_writer(self._number)
            os.close(self._number)

    def _wake(self) -> None:
        for one in self._waiting:
            settle(one)

    async def _wait(self, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
        ready = asyncio.get_running_loop().create_future()
        add(self._number, settle, ready)
        self._waiting.add(ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            if not self.is_closed:
                remove(self._number)
