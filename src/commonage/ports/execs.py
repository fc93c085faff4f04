"""A command that runs in an attempt's environment, and the streams between it and its caller.

Implemented by engines; used by control, which passes it to the API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from commonage.domain.errors import Conflict

OUT, ERR = 1, 2
"""The output streams of a command: stdout and stderr. With a terminal, all output is on OUT."""


class NotRunning(Conflict):
    """The attempt does not run, so no command can run in it."""

    code: ClassVar[str] = "not-running"


@dataclass(frozen=True, slots=True)
class Terminal:
    """The caller's terminal: its size in characters, and its type (TERM)."""

    columns: int = 80
    rows: int = 24
    kind: str = "xterm"


class ExecStream(Protocol):
    """One such command, from its start to its end.

    It ends when its program ends, when `close` is called, or with the attempt; then all processes that it started are
    ended, too. Reading and writing may happen at the same time; each may raise EngineFailure.
    """

    async def write(self, data: bytes) -> None:
        """Send input; waits while the command reads none. Input after `close_stdin` or the command's end is lost."""

    async def close_stdin(self) -> None:
        """Close its input. No effect with a terminal: there the end of input is a character."""

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal. No effect without a terminal."""

    async def read(self) -> tuple[int, bytes] | None:
        """Its next output and the stream (OUT, ERR); None when it has ended and all output was read."""

    async def exit_code(self) -> int:
        """Its exit code, 128 plus the signal number if killed; waits for the end. 137 if it ended with its attempt."""

    async def close(self) -> None:
        """End it and all processes that it started: SIGHUP first, then by force. Idempotent; raises nothing."""
