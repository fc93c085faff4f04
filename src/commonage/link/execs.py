"""Commands on a machine of the site, over the link of its agent: what is said, and the control plane's end of it.

The agent is asked once for each; its answer is the end. Input and output are said meanwhile, in small parts, and of
each only so much as the other side has room for: whoever is slow holds up nobody else on the link. Of the standard
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
from commonage.link.messages import Call
from commonage.link.peer import Hears, Peer
from commonage.ports.execs import NotRunning, Terminal

IN = 0
"""The stream of input; OUT and ERR are those of output."""
WINDOW = 128 * 1024
_PART = 12 * 1024
_ENDS_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class ExecWish:
    """Run this beside an attempt. `id` is what the rest is said of."""

    id: str
    attempt_id: str
    command: tuple[str, ...]
    terminal: Terminal | None = None


@dataclass(frozen=True, slots=True)
class ExecEnd:
    """How it ended. `absent`: it was not begun, for the attempt does not run there."""

    exit_code: int
    absent: bool = False


@dataclass(frozen=True, slots=True)
class ExecStarted:
    """It runs."""

    id: str


@dataclass(frozen=True, slots=True)
class ExecData:
    """Input or output, in base64. Empty: the end of the input."""

    id: str
    stream: int
    data: str


@dataclass(frozen=True, slots=True)
class ExecTaken:
    """So many bytes were taken: as many may be said anew."""

    id: str
    count: int


@dataclass(frozen=True, slots=True)
class ExecSize:
    """Its terminal has another size."""

    id: str
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class ExecOver:
    """Nobody listens any more: end it."""

    id: str


EXEC = Call("exec", ExecWish, ExecEnd, None)


class Outlet:
    """What is said of one command in one direction, within its window."""

    def __init__(self, peer: Peer, exec_id: str) -> None:
        self._peer, self._id = peer, exec_id
        self._room = WINDOW
        self._changed = asyncio.Event()
        self._is_closed = False

    async def say(self, stream: int, data: bytes) -> None:
        """All of it, as there is room; after `close` it is lost."""
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
        """There is room for so much more."""
        self._room += count
        self._changed.set()

    def close(self) -> None:
        """Nobody takes anything any more."""
        self._is_closed = True
        self._changed.set()


def content_of(said: ExecData) -> bytes:
    """The bytes themselves. Raises ValueError."""
    return base64.b64decode(said.data, validate=True)


class ExecLines:
    """The commands under way over one link."""

    def __init__(self) -> None:
        self._lines: dict[str, LinkedExec] = {}

    def hears(self) -> Hears:
        """What the agent says of them."""
        return {
            "exec-started": (ExecStarted, lambda said: self._tell(said.id, LinkedExec.has_started)),
            "exec-data": (ExecData, lambda said: self._tell(said.id, lambda line: line.heard(said))),
            "exec-taken": (ExecTaken, lambda said: self._tell(said.id, lambda line: line.outlet.taken(said.count))),
        }

    def _tell(self, exec_id: str, what: Callable[[LinkedExec], None]) -> None:
        line = self._lines.get(exec_id)
        if line is not None:
            what(line)

    async def begin(self, peer: Peer, attempt_id: str, command: Sequence[str], terminal: Terminal | None) -> LinkedExec:
        """Have the agent run it. Raises NotRunning, EngineFailure."""
        wish = ExecWish(secrets.token_hex(8), attempt_id, tuple(command), terminal)
        line = self._lines[wish.id] = LinkedExec(peer, wish)
        line.asking.add_done_callback(lambda _: self._lines.pop(wish.id, None))
        try:
            await line.begun()
        except BaseException:
            line.drop()
            raise
        return line


class LinkedExec:
    """Implements `ports.execs.ExecStream`: one command, as the control plane has it."""

    def __init__(self, peer: Peer, wish: ExecWish) -> None:
        self._peer, self._wish = peer, wish
        self._said: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()  # bounded by the window
        self._started = asyncio.Event()
        self._is_read = False
        self.outlet = Outlet(peer, wish.id)
        self.asking = asyncio.create_task(peer.ask(EXEC, wish))
        self.asking.add_done_callback(self._has_ended)

    def _has_ended(self, asking: asyncio.Task[ExecEnd]) -> None:
        if not asking.cancelled():
            asking.exception()  # though it may be that nobody reads any more
        self.outlet.close()
        self._started.set()
        self._said.put_nowait(None)

    def has_started(self) -> None:
        """The agent says so."""
        self._started.set()

    def heard(self, said: ExecData) -> None:
        """Some of its output."""
        self._said.put_nowait((said.stream, content_of(said)))

    async def begun(self) -> None:
        """Wait until it runs. Raises NotRunning, EngineFailure."""
        await self._started.wait()
        if self.asking.done() and self.asking.result().absent:
            raise NotRunning(f"{self._wish.attempt_id[:100]} does not run, so that nothing can run beside it")

    def drop(self) -> None:
        """Nobody waits for it any more; the agent ends it."""
        self.asking.cancel()

    # --- the port -------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Within the window."""
        await self.outlet.say(IN, data)

    async def close_stdin(self) -> None:
        """Said as the end of the input."""
        if not self.asking.done():
            self._peer.say("exec-data", ExecData(self._wish.id, IN, ""))

    async def resize(self, columns: int, rows: int) -> None:
        """Said."""
        if not self.asking.done():
            self._peer.say("exec-size", ExecSize(self._wish.id, columns, rows))

    async def read(self) -> tuple[int, bytes] | None:
        """What was heard next."""
        said = None if self._is_read else await self._said.get()
        if said is None:
            self._is_read = True
            if not self.asking.cancelled():
                self.asking.result()
            return None
        self._peer.say("exec-taken", ExecTaken(self._wish.id, len(said[1])))
        return said

    async def exit_code(self) -> int:
        """The agent's answer."""
        return (await asyncio.shield(self.asking)).exit_code

    async def close(self) -> None:
        """Said, and waited for; a lost link ends it, too."""
        if self.asking.done():
            return
        self._peer.say("exec-over", ExecOver(self._wish.id))
        while not self._said.empty():  # what nobody reads must not hold it up
            self._said.get_nowait()
        with suppress(EngineFailure, TimeoutError):
            async with asyncio.timeout(_ENDS_WITHIN_S):
                await self.asking
