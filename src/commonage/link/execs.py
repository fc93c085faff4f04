"""Exec over an agent's link: its messages, and the control plane's end of a command.

Each command is one request to the agent; the result is the end of the command. Input and output are sent meanwhile in
small parts within a window, so that a slow client does not block others on the link. Uses the standard library only.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from commonage.domain.codec import Unreadable
from commonage.domain.errors import EngineFailure
from commonage.link.connection import Connection
from commonage.link.exchange import MessageHandlers
from commonage.link.messages import RequestType
from commonage.ports.execs import ERR, OUT, NotRunning, Terminal

STDIN = 0
"""The input stream; OUT and ERR are the output streams."""
WINDOW_BYTES = 128 * 1024
_CHUNK_BYTES = 12 * 1024
_CLOSE_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """Request to run this command in an attempt's container. `id` identifies the command in later messages."""

    id: str
    attempt_id: str
    command: tuple[str, ...]
    terminal: Terminal | None = None


@dataclass(frozen=True, slots=True)
class ExecEnd:
    """The end of the command. `absent`: it was not started, because the attempt does not run there."""

    exit_code: int
    absent: bool = False


@dataclass(frozen=True, slots=True)
class ExecStarted:
    id: str


@dataclass(frozen=True, slots=True)
class ExecData:
    """Input or output, in base64. Empty: the end of the input."""

    id: str
    stream: int
    data: str


@dataclass(frozen=True, slots=True)
class ExecConsumed:
    """This many bytes were consumed: the sender may send as many again."""

    id: str
    count: int


@dataclass(frozen=True, slots=True)
class ExecResize:
    """New size of the command's terminal."""

    id: str
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class ExecCancel:
    id: str


EXEC = RequestType("exec", ExecRequest, ExecEnd, None)


class ExecSender:
    """Sends the data of one command in one direction, within its window."""

    def __init__(self, connection: Connection, exec_id: str) -> None:
        self._connection, self._id = connection, exec_id
        self._window = WINDOW_BYTES
        self._changed = asyncio.Event()
        self._is_closed = False

    async def send(self, stream: int, data: bytes) -> None:
        """Send all of the data as the window allows; after `close` it is dropped."""
        for start in range(0, len(data), _CHUNK_BYTES):
            part = data[start : start + _CHUNK_BYTES]
            while self._window < len(part) and not self._is_closed:
                self._changed.clear()
                await self._changed.wait()
            if self._is_closed:
                return
            self._window -= len(part)
            self._connection.send("exec-data", ExecData(self._id, stream, base64.b64encode(part).decode("ascii")))

    def consumed(self, count: int) -> None:
        self._window += count
        self._changed.set()

    def close(self) -> None:
        """The receiver is gone."""
        self._is_closed = True
        self._changed.set()


class ExecReceiver:
    """The window of one command in one direction, at the receiver: it bounds the data that waits to be consumed."""

    def __init__(self, connection: Connection, exec_id: str) -> None:
        self._connection, self._id = connection, exec_id
        self._window = WINDOW_BYTES

    def received(self, message: ExecData) -> bytes:
        """The data of the message. Raises Unreadable for more than the window, ValueError."""
        data = base64.b64decode(message.data, validate=True)
        if len(data) > self._window:
            raise Unreadable(f"the command {self._id} got {len(data)} bytes, and only {self._window} were allowed")
        self._window -= len(data)
        return data

    def consumed(self, count: int) -> None:
        self._window += count
        self._connection.send("exec-consumed", ExecConsumed(self._id, count))


class LinkExecs:
    def __init__(self) -> None:
        self._running: dict[str, LinkedExec] = {}

    def message_handlers(self) -> MessageHandlers:
        return {
            "exec-started": (ExecStarted, lambda message: self._deliver(message.id, LinkedExec.on_started)),
            "exec-data": (
                ExecData,
                lambda message: self._deliver(message.id, lambda command: command.on_output(message)),
            ),
            "exec-consumed": (
                ExecConsumed,
                lambda message: self._deliver(message.id, lambda command: command.sender.consumed(message.count)),
            ),
        }

    def _deliver(self, exec_id: str, deliver: Callable[[LinkedExec], None]) -> None:
        command = self._running.get(exec_id)
        if command is not None:
            deliver(command)

    async def begin(
        self, connection: Connection, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> LinkedExec:
        """Start a command on the agent. Raises NotRunning, EngineFailure."""
        request = ExecRequest(secrets.token_hex(8), attempt_id, tuple(command), terminal)
        running = self._running[request.id] = LinkedExec(connection, request)
        running.end.add_done_callback(lambda _: self._running.pop(request.id, None))
        try:
            await running.wait_started()
        except BaseException:
            running.drop()
            raise
        return running


class LinkedExec:
    """Implements `ports.execs.ExecStream`: one command, seen from the control plane."""

    def __init__(self, connection: Connection, request: ExecRequest) -> None:
        self._connection, self._request = connection, request
        self._output: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()  # bounded by the window
        self._started = asyncio.Event()
        self._is_exhausted = False
        self.sender = ExecSender(connection, request.id)
        self._receiver = ExecReceiver(connection, request.id)
        self.end = asyncio.create_task(connection.request(EXEC, request))
        self.end.add_done_callback(self._on_end)

    def _on_end(self, end: asyncio.Task[ExecEnd]) -> None:
        if not end.cancelled():
            end.exception()  # marked as retrieved: the output may have no reader any more
        self.sender.close()
        self._started.set()
        self._output.put_nowait(None)

    def on_started(self) -> None:
        self._started.set()

    def on_output(self, message: ExecData) -> None:
        """Raises Unreadable, which ends the link: only a faulty agent sends more than the window allows."""
        data = self._receiver.received(message)
        if message.stream not in (OUT, ERR) or not data:
            raise Unreadable(f"the command {message.id[:32]} sent no output in the stream {message.stream}")
        self._output.put_nowait((message.stream, data))

    async def wait_started(self) -> None:
        await self._started.wait()
        if self.end.done() and self.end.result().absent:
            attempt = self._request.attempt_id[:100]
            raise NotRunning(f"{attempt} is not running: a command can run only in a running attempt")

    def drop(self) -> None:
        self.end.cancel()

    # --- the port -------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Send input within the window."""
        await self.sender.send(STDIN, data)

    async def close_stdin(self) -> None:
        if not self.end.done():
            self._connection.send("exec-data", ExecData(self._request.id, STDIN, ""))

    async def resize(self, columns: int, rows: int) -> None:
        if not self.end.done():
            self._connection.send("exec-resize", ExecResize(self._request.id, columns, rows))

    async def read(self) -> tuple[int, bytes] | None:
        output = None if self._is_exhausted else await self._output.get()
        if output is None:
            self._is_exhausted = True
            if not self.end.cancelled():
                self.end.result()
            return None
        self._receiver.consumed(len(output[1]))
        return output

    async def exit_code(self) -> int:
        return (await asyncio.shield(self.end)).exit_code

    async def close(self) -> None:
        """Ask the agent to end the command and wait for it; a lost link ends it, too."""
        if self.end.done():
            return
        self._connection.send("exec-cancel", ExecCancel(self._request.id))
        while not self._output.empty():  # unread output must not block the end
            self._output.get_nowait()
        with suppress(EngineFailure, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.end
