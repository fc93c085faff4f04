"""Exec over an agent's link: its messages, and the control plane's end of a command.

The agent is asked once for each command; its answer is the end. Input and output are sent meanwhile in small parts, and
only as much as the other side has room for, so that a slow client does not block others on the link. Uses the standard
library alone.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from commonage.domain.errors import EngineFailure
from commonage.link.connection import Connection, MessageHandlers
from commonage.link.messages import RequestType
from commonage.ports.execs import NotRunning, Terminal

IN = 0
"""The input stream; OUT and ERR are the output streams."""
WINDOW = 128 * 1024
_PART = 12 * 1024
_ENDS_WITHIN_S = 20.0


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
    """The command runs."""

    id: str


@dataclass(frozen=True, slots=True)
class ExecData:
    """Input or output, in base64. Empty: the end of the input."""

    id: str
    stream: int
    data: str


@dataclass(frozen=True, slots=True)
class ExecTaken:
    """This many bytes were consumed: the sender may send as many again."""

    id: str
    count: int


@dataclass(frozen=True, slots=True)
class ExecSize:
    """New size of the command's terminal."""

    id: str
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class ExecOver:
    """The client is gone: end the command."""

    id: str


EXEC = RequestType("exec", ExecRequest, ExecEnd, None)


class ExecSender:
    """Sends the data of one command in one direction, within its window."""

    def __init__(self, peer: Connection, exec_id: str) -> None:
        self._peer, self._id = peer, exec_id
        self._room = WINDOW
        self._changed = asyncio.Event()
        self._is_closed = False

    async def say(self, stream: int, data: bytes) -> None:
        """Send all of the data as the window allows; after `close` it is dropped."""
        for start in range(0, len(data), _PART):
            part = data[start : start + _PART]
            while self._room < len(part) and not self._is_closed:
                self._changed.clear()
                await self._changed.wait()
            if self._is_closed:
                return
            self._room -= len(part)
            self._peer.say("exec-data", ExecData(self._id, stream, base64.b64encode(part).decode("ascii")))

    def taken(self, count: int) -> None:
        """The receiver consumed this many bytes."""
        self._room += count
        self._changed.set()

    def close(self) -> None:
        """The receiver is gone."""
        self._is_closed = True
        self._changed.set()


def content_of(said: ExecData) -> bytes:
    """The decoded bytes. Raises ValueError."""
    return base64.b64decode(said.data, validate=True)


class LinkExecs:
    """The commands that run over one link."""

    def __init__(self) -> None:
        self._lines: dict[str, LinkedExec] = {}

    def hears(self) -> MessageHandlers:
        """Handlers for the agent's messages about them."""
        return {
            "exec-started": (ExecStarted, lambda said: self._tell(said.id, LinkedExec.has_started)),
            "exec-data": (ExecData, lambda said: self._tell(said.id, lambda line: line.agent_reports(said))),
            "exec-taken": (ExecTaken, lambda said: self._tell(said.id, lambda line: line.sender.taken(said.count))),
        }

    def _tell(self, exec_id: str, what: Callable[[LinkedExec], None]) -> None:
        line = self._lines.get(exec_id)
        if line is not None:
            what(line)

    async def begin(
        self, peer: Connection, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> LinkedExec:
        """Start a command on the agent. Raises NotRunning, EngineFailure."""
        stop = ExecRequest(secrets.token_hex(8), attempt_id, tuple(command), terminal)
        line = self._lines[stop.id] = LinkedExec(peer, stop)
        line.asking.add_done_callback(lambda _: self._lines.pop(stop.id, None))
        try:
            await line.begun()
        except BaseException:
            line.drop()
            raise
        return line


class LinkedExec:
    """Implements `ports.execs.ExecStream`: one command, seen from the control plane."""

    def __init__(self, peer: Connection, stop: ExecRequest) -> None:
        self._peer, self._stop = peer, stop
        self._said: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()  # bounded by the window
        self._started = asyncio.Event()
        self._is_read = False
        self.sender = ExecSender(peer, stop.id)
        self.asking = asyncio.create_task(peer.ask(EXEC, stop))
        self.asking.add_done_callback(self._has_ended)

    def _has_ended(self, asking: asyncio.Task[ExecEnd]) -> None:
        if not asking.cancelled():
            asking.exception()  # retrieve it, in case nobody reads the output any more
        self.sender.close()
        self._started.set()
        self._said.put_nowait(None)

    def has_started(self) -> None:
        """The agent reports that the command runs."""
        self._started.set()

    def agent_reports(self, said: ExecData) -> None:
        """Queue output."""
        self._said.put_nowait((said.stream, content_of(said)))

    async def begun(self) -> None:
        """Wait until the command runs. Raises NotRunning, EngineFailure."""
        await self._started.wait()
        if self.asking.done() and self.asking.result().absent:
            raise NotRunning(f"{self._stop.attempt_id[:100]} does not run, so that nothing can run beside it")

    def drop(self) -> None:
        """The client is gone; the agent ends the command."""
        self.asking.cancel()

    # --- the port -------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Send input within the window."""
        await self.sender.say(IN, data)

    async def close_stdin(self) -> None:
        """Send the end of the input."""
        if not self.asking.done():
            self._peer.say("exec-data", ExecData(self._stop.id, IN, ""))

    async def resize(self, columns: int, rows: int) -> None:
        """Send the terminal size."""
        if not self.asking.done():
            self._peer.say("exec-size", ExecSize(self._stop.id, columns, rows))

    async def read(self) -> tuple[int, bytes] | None:
        """The next output."""
        said = None if self._is_read else await self._said.get()
        if said is None:
            self._is_read = True
            if not self.asking.cancelled():
                self.asking.result()
            return None
        self._peer.say("exec-taken", ExecTaken(self._stop.id, len(said[1])))
        return said

    async def exit_code(self) -> int:
        """The exit code from the agent's answer."""
        return (await asyncio.shield(self.asking)).exit_code

    async def close(self) -> None:
        """Ask the agent to end the command and wait for it; a lost link ends it, too."""
        if self.asking.done():
            return
        self._peer.say("exec-over", ExecOver(self._stop.id))
        while not self._said.empty():  # unread output must not block the end
            self._said.get_nowait()
        with suppress(EngineFailure, TimeoutError):
            async with asyncio.timeout(_ENDS_WITHIN_S):
                await self.asking
