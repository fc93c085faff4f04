"""What is said over the WebSocket of a command beside a workload.

The client begins with `ExecIn`. Then it sends input as binary messages, and `ToCommand`; it gets what the command says
as binary messages, whose first byte is the stream (1 output, 2 errors), and `FromCommand`. Of its input at most
`WINDOW` bytes may be under way: what `taken` names may be sent anew. After `exit` or `problem` nothing comes.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from commonage.wire.workloads import Argument, Problem, Strict

WINDOW = 256 * 1024
CHUNK = 32 * 1024
"""Of input in one message."""

TerminalKind = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]{0,63}$")]


class SizeIn(Strict):
    """Of a terminal, in characters."""

    columns: int = Field(80, ge=1, le=10_000)
    rows: int = Field(24, ge=1, le=10_000)


class TerminalIn(SizeIn):
    """The terminal that the client sits at."""

    kind: TerminalKind = Field("xterm", description="Its TERM.")


class ExecIn(Strict):
    """What to run; a shell if the command is empty. Without a terminal its input and output are pipes."""

    command: list[Argument] = Field(default_factory=list, max_length=4096)
    terminal: TerminalIn | None = None


class ToCommand(Strict):
    """The terminal has another size; the input has an end."""

    resize: SizeIn | None = None
    end: bool = False


class FromCommand(BaseModel):
    """One of these: it has been started; so many bytes of input were taken; its exit code; why there is none."""

    started: bool | None = None
    taken: int | None = None
    exit: int | None = None
    problem: Problem | None = None
