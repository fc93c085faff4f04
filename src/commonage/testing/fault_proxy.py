"""A TCP proxy that spoils the line between two programs on command: for tests of what must survive a bad network."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

_CHUNK = 16 * 1024


@dataclass(slots=True)
class Faults:
    """Faults of the line in both directions, from the next bytes on.

    `delay_s` is added to each piece of up to 16 KiB; `bytes_per_s` limits each direction of a connection. `silent`: the
    line takes bytes and delivers none, and tells neither side. `corrupt_in`: after this many more bytes one bit is
    inverted, once. `cut_in`: after this many more bytes all connections break. `refuses`: new connections end at once.
    """

    delay_s: float = 0.0
    bytes_per_s: float | None = None
    silent: bool = False
    corrupt_in: int | None = None
    cut_in: int | None = None
    refuses: bool = False


class FaultProxy:
    """Forwards connections to `host` to the port `target` of `target_host`. `accepted` counts them."""

    def __init__(self, target: int, host: str = "127.0.0.1", target_host: str = "127.0.0.1") -> None:
        self.target, self._host, self._target_host = target, host, target_host
        self.faults = Faults()
        self.accepted = self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    async def open(self) -> None:
        """Listen on a free port: `port`."""
        self._server = await asyncio.start_server(self._accept, self._host, 0, limit=_CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections at once, with a reset."""
        for task, writers in list(self._connections.items()):
            for writer in writers:
                writer.transport.abort()
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.faults.refuses:
            writer.transport.abort()
            return
        self.accepted += 1
        task = asyncio.create_task(self._forward(reader, writer))
        self._connections[task] = [writer]
        task.add_done_callback(lambda one: self._connections.pop(one, None))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            target = await asyncio.open_connection(self._target_host, self.target, limit=_CHUNK)
            writers.append(target[1])
            for task, kept in self._connections.items():
                if kept[0] is writer:
                    self._connections[task] = writers
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, target[1]))
                both.create_task(self._copy(target[0], writer))
        except* OSError:  # one side is gone
            pass
        finally:
            for one in writers:
                one.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK):
            faults = self.faults
            if faults.delay_s:
                await asyncio.sleep(faults.delay_s)
            if faults.bytes_per_s is not None:
                await asyncio.sleep(len(data) / faults.bytes_per_s)
            if faults.silent:
                continue
            target.write(self._spoiled(data))
            await target.drain()
        with suppress(OSError):  # already closed
            target.write_eof()

    def _spoiled(self, data: bytes) -> bytes:
        faults = self.faults
        if faults.cut_in is not None:
            faults.cut_in -= len(data)
            if faults.cut_in < 0:
                faults.cut_in = None
                asyncio.get_running_loop().call_soon(self.cut)
        if faults.corrupt_in is not None:
            faults.corrupt_in -= len(data)
            if faults.corrupt_in < 0:
                at = len(data) + faults.corrupt_in
                faults.corrupt_in = None
                return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data
