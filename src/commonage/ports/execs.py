"""A command that runs beside an attempt, and what passes between it and whoever had it run.

Implemented by engines; used by control, which hands it to the API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from commonage.domain.errors import Conflict

OUT, ERR = 1, 2
"""The streams of what a command says: its output and its errors. With a terminal all is output."""


class NotRunning(Conflict):
    """The attempt does not run, so that nothing can run beside it."""

    code: ClassVar[str] = "not-running"


@dataclass(frozen=True, slots=True)
class Terminal:
    """What the one who asks sits at: so many columns and rows of characters, and its kind (TERM)."""

    columns: int = 80
    rows: int = 24
    kind: str = "xterm"


class ExecStream(Protocol):
    """One such command, from its start to its end.

    It ends when its program ends, when `close` is called, or with the attempt; then whatever it started is ended, too.
    Reading and writing may go on at the same time; each may raise EngineFailure.
    """

    async def write(self, data: bytes) -> None:
        """Give it input; waits while it takes none. What comes after the end of its input or its own is lost."""
        ...

    async def close_stdin(self) -> None:
        """Its input has an end. With a terminal nothing: there the end is a character."""
        ...

    async def resize(self, columns: int, rows: int) -> None:
        """Its terminal has another size. Without a terminal nothing."""
        ...

    async def read(self) -> tuple[int, bytes] | None:
        """What it says next, and on which stream (OUT, ERR); None once it has ended and all was read."""
        ...

    async def exit_code(self) -> int:
        """How it ended, 128 and more by that signal; waits until it has. 137 where it ended with its attempt."""
        ...

    async def close(self) -> None:
        """End it and all that it started: by SIGHUP, by force after a moment. Idempotent; raises nothing."""
        ...
