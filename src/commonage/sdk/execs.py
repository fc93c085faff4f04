"""Commands in running workloads, over a WebSocket: `AsyncClient.exec` gives an `Exec`, `execute` runs one to its end.

Imported on first use, because it needs an HTTP client that nothing else here needs.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp

from commonage.sdk.calls import Executed
from commonage.sdk.errors import ApiError, Unreachable
from commonage.sdk.transport import Place
from commonage.wire.execs import CHUNK, WINDOW, ExecIn, FromCommand, SizeIn, TerminalIn, ToCommand

OUT, ERR = 1, 2
_MAX_BYTES = 4 * 1024 * 1024
_CONNECTS_WITHIN_S = 30.0
_BROKEN = "the connection broke, and the command was ended with it"


class Exec:
    """A running command. Reading and writing may continue at the same time. Every method may raise ApiError."""

    def __init__(self, link: aiohttp.ClientWebSocketResponse) -> None:
        self._link = link
        self._room = WINDOW
        self._more_room = asyncio.Event()
        self.exit_code: int | None = None
        """Known once `read` has given None."""

    async def write(self, data: bytes) -> None:
        """Write to its input, as fast as it reads. `read` must run meanwhile: it receives the acknowledgements."""
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            while self._room < len(part) and not self._is_over:
                self._more_room.clear()
                await self._more_room.wait()
            if self._is_over:
                return
            self._room -= len(part)
            with suppress(OSError):  # `read` reports the failure
                await self._link.send_bytes(part)

    async def close_stdin(self) -> None:
        await self._send(ToCommand(end=True))

    async def resize(self, columns: int, rows: int) -> None:
        await self._send(ToCommand(resize=SizeIn(columns=columns, rows=rows)))

    async def read(self) -> tuple[int, bytes] | None:
        """Read the next output and its stream (OUT, ERR); None at the end."""
        try:
            return await self._read()
        finally:
            if self._is_over:
                self._more_room.set()

    async def _read(self) -> tuple[int, bytes] | None:
        while self.exit_code is None:
            message = await self._link.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                return message.data[0], message.data[1:]
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise Unreachable(_BROKEN)
            self._apply(FromCommand.model_validate_json(message.data))
        return None

    def _apply(self, message: FromCommand) -> None:
        if message.problem is not None:
            raise ApiError.of(message.problem.status, message.problem.model_dump_json().encode())
        if message.taken is not None:
            self._room += message.taken
            self._more_room.set()
        if message.exit is not None:
            self.exit_code = message.exit

    async def begin(self, ask: ExecIn) -> None:
        await self._link.send_str(ask.model_dump_json(exclude_none=True))
        message = await self._link.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise Unreachable(_BROKEN)
        self._apply(FromCommand.model_validate_json(message.data))

    @property
    def _is_over(self) -> bool:
        return self.exit_code is not None or self._link.closed

    async def _send(self, message: ToCommand) -> None:
        if not self._is_over:
            with suppress(OSError):
                await self._link.send_str(message.model_dump_json(exclude_defaults=True))


@asynccontextmanager
async def connected(place: Place, command: Sequence[str], terminal: TerminalIn | None) -> AsyncIterator[Exec]:
    """Connect and start a command; leaving the block ends it. Raises ApiError."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECTS_WITHIN_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        try:
            link = await session.ws_connect(place.url, headers=place.headers, max_msg_size=_MAX_BYTES, autoping=True)
        except aiohttp.WSServerHandshakeError:
            raise await place.why() from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(f"the control plane cannot be reached ({reason}); is it running?") from error
        async with link:
            _notice_silence(link)
            running = Exec(link)
            await running.begin(ExecIn(command=list(command), terminal=terminal))
            yield running


def _notice_silence(link: aiohttp.ClientWebSocketResponse) -> None:
    """Let the kernel detect a peer that is gone without closing the connection."""
    connection = link.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def async_execute(place: Place, command: Sequence[str], stdin: bytes) -> Executed:
    output = {OUT: bytearray(), ERR: bytearray()}

    async def write_input(running: Exec) -> None:
        await running.write(stdin)
        await running.close_stdin()

    async with connected(place, command, None) as running:
        writer = asyncio.create_task(write_input(running))
        try:
            while (chunk := await running.read()) is not None:
                stream, data = chunk
                output[stream] += data
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        assert running.exit_code is not None
        return Executed(running.exit_code, bytes(output[OUT]), bytes(output[ERR]))


def execute(place: Place, command: Sequence[str], stdin: bytes) -> Executed:
    """`async_execute` in a thread of its own, which also works while the caller's thread runs an event loop."""
    result: list[Executed | BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(async_execute(place, command, stdin)))
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    [outcome] = result
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
