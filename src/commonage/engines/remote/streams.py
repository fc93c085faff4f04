"""Logs of attempts and commands in attempts, over streams of a site link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from commonage.domain.errors import EngineFailure, NotFound
from commonage.domain.statuses import LogLine
from commonage.link.sites.messages.engine import EXEC, LOGS, ExecCommand, LogLines, LogRequest, TerminalSize
from commonage.link.sites.transport.connection import SiteConnection
from commonage.link.sites.transport.packets import Packets, PacketType, decode, encode
from commonage.link.sites.transport.streams import Stream
from commonage.ports.execs import ExecStream

_UNREAD_BYTES = 256 * 1024
_INPUT_BYTES = 64 * 1024
_ASK_TIMEOUT_S, _CLOSE_TIMEOUT_S = 1.0, 20.0
_HUNG_UP = 129


async def read_log(connection: SiteConnection, request: LogRequest) -> AsyncGenerator[LogLine]:
    """Raises NotFound, EngineFailure."""
    async with await connection.open(LOGS, request) as stream:
        packets = Packets(stream)
        while (packet := await packets.read()) is not None:
            match packet:
                case PacketType.LINES, payload:
                    for text, offset in decode(LogLines, payload).lines:
                        yield LogLine(text, offset)
                case _:
                    raise NotFound(f"there is no log of {request.attempt_id[:100]}", code="log-not-found")


async def begin_exec(connection: SiteConnection, command: ExecCommand) -> RemoteExec:
    """Raises NotRunning, EngineFailure."""
    return RemoteExec(await connection.open(EXEC, command))


class RemoteExec(ExecStream):
    """A command at the site. It ends with the link at the latest."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._packets = stream, Packets(stream)
        self._output: list[tuple[int, bytes]] = []
        self._unread = 0
        self._changed = asyncio.Event()
        self._closing = False
        self._end: asyncio.Task[int] = asyncio.create_task(self._receive())
        self._end.add_done_callback(self._on_end)

    def _on_end(self, end: asyncio.Task[int]) -> None:
        if not end.cancelled():
            end.exception()  # marked as retrieved: there may be no waiter
        self._changed.set()

    async def _receive(self) -> int:
        try:
            return await self._receive_all()
        except EngineFailure:
            if self._closing:  # the site ends it when the stream or the link ends
                return _HUNG_UP
            raise

    async def _receive_all(self) -> int:
        """Receive output until the end, within a limit of unread output. Returns the exit code."""
        while (packet := await self._packets.read()) is not None:
            match packet:
                case (PacketType.OUT | PacketType.ERR) as kind, data:
                    await self._put(int(kind), data)
                case PacketType.EXIT_CODE, payload:
                    return decode(int, payload)
                case kind, _:
                    raise EngineFailure(f"the site sent a packet of type {kind.name} for a command")
        raise EngineFailure("the site ended the command without its exit code")

    async def _put(self, kind: int, data: bytes) -> None:
        while self._unread > _UNREAD_BYTES and not self._closing:
            self._changed.clear()
            await self._changed.wait()
        if not self._closing:
            self._output.append((kind, data))
            self._unread += len(data)
        self._changed.set()

    # --- the port -------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), _INPUT_BYTES):
            await self._send(PacketType.STDIN, data[start : start + _INPUT_BYTES])

    async def close_stdin(self) -> None:
        await self._send(PacketType.END_OF_INPUT)

    async def resize(self, columns: int, rows: int) -> None:
        await self._send(PacketType.RESIZE, encode(TerminalSize(columns, rows)))

    async def _send(self, kind: PacketType, payload: bytes = b"") -> None:
        """Input after the end of the command is lost."""
        if self._end.done():
            return
        try:
            await self._packets.send(kind, payload)
        except EngineFailure:
            if not self._end.done() or self._end.exception() is not None:
                raise

    async def read(self) -> tuple[int, bytes] | None:
        while not self._output:
            if self._end.done():
                self._end.result()
                return None
            self._changed.clear()
            await self._changed.wait()
        kind, data = self._output.pop(0)
        self._unread -= len(data)
        self._changed.set()
        return kind, data

    async def exit_code(self) -> int:
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """Ask the site to end the command, and wait for it. If it reads no input, only the stream's end reaches it."""
        self._closing = True
        self._output.clear()
        self._unread = 0
        self._changed.set()
        with suppress(EngineFailure, TimeoutError):
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                await self._send(PacketType.CLOSE)
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await asyncio.shield(self._end)
        self._stream.abort("the command was closed")
