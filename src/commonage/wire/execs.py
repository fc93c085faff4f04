"""Messages of the WebSocket that runs a command in a workload.

The client first sends `ExecIn`, then input as binary messages, and `ToCommand`. It receives output as binary messages,
with one byte for the stream first (1 stdout, 2 stderr), and `FromCommand`. At most `WINDOW` bytes of input may be
unacknowledged; `taken` acknowledges bytes. `exit` or `problem` is the last message.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from commonage.wire.reasons import Problem
from commonage.wire.types import Argument, Strict

WINDOW = 256 * 1024
CHUNK = 32 * 1024  # bytes of input in one message

TerminalKind = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]{0,63}$")]


class SizeIn(Strict):
    """Size of a terminal in characters."""

    columns: int = Field(80, ge=1, le=10_000)
    rows: int = Field(24, ge=1, le=10_000)


class TerminalIn(SizeIn):
    """The terminal of the client."""

    kind: TerminalKind = Field("xterm", description="Value of TERM.")


class ExecIn(Strict):
    """The command to run; an empty one is a shell. Without a terminal, input and output are pipes."""

    command: list[Argument] = Field(default_factory=list, max_length=4096)
    terminal: TerminalIn | None = None


class ToCommand(Strict):
    """A new size of the terminal, or the end of the input."""

    resize: SizeIn | None = None
    end: bool = False


class FromCommand(BaseModel):
    """One of: the command has started; number of acknowledged input bytes; its exit code; why it has none."""

    started: bool | None = None
    taken: int | None = None
    exit: int | None = None
    problem: Problem | None = None
