"""`commonage exec`: a command beside a workload, at one's own terminal or in a pipe."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import click

from commonage.cli.connection import calls_server, connect, find_workload
from commonage.cli.credentials import Server
from commonage.cli.follow import INTERRUPTED

if TYPE_CHECKING:
    from commonage.sdk.execs import Exec
    from commonage.wire.execs import TerminalIn

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_CHUNK = 32 * 1024
_BROKEN_PIPE = 141


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("workload", metavar="ID")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND…")
@click.option(
    "-t", "--tty/--no-tty", "wants_tty", default=None,
    help="Give it a terminal, or pipes. If left out, a terminal where this is run at one.",
)  # fmt: skip
@calls_server
def exec_(server: Server, workload: str, command: tuple[str, ...], wants_tty: bool | None) -> None:
    """Run a command inside a running session, job or service, beside what runs there; a shell if none is named.

    It has the same folder, variables, limits and network. Ends with the command's exit code; 127 if there is no such
    command. When this ends, by whatever means, the command is ended, too, and all that it started.

    \b
    Example:
      commonage exec 7k2v
      commonage exec train -- nvidia-smi
      commonage exec train -- tar -c results | tar -x
    """
    with connect(server) as client:
        found = find_workload(client, workload).id
    at_terminal = os.isatty(_STDIN) if wants_tty is None else wants_tty
    command = command[1:] if command[:1] == ("--",) else command
    try:
        code = asyncio.run(_run(server, found, command, at_terminal))
    except KeyboardInterrupt:
        code = INTERRUPTED
    # A thread may still wait for input that never comes; nothing of it is to be waited for.
    sys.stdout.flush()
    sys.exit(code)


async def _run(server: Server, workload: str, command: Sequence[str], at_terminal: bool) -> int:
    from commonage.sdk import AsyncClient

    terminal = _terminal() if at_terminal else None
    async with (
        AsyncClient(server.url, server.token) as client,
        client.exec(workload, command, terminal=terminal) as running,
    ):
        with _raw() if at_terminal else _as_it_is():
            async with _resizing(running) if at_terminal else _never():
                return await _talk(running)


def _terminal() -> TerminalIn:
    from commonage.wire.execs import TerminalIn

    size = _size()
    wanted = {"columns": size.columns, "rows": size.lines, "kind": os.environ.get("TERM") or "xterm"}
    return TerminalIn.model_validate(wanted)


def _size() -> os.terminal_size:
    """The terminal's own at our input: what COLUMNS says may be of another time, or of another terminal."""
    with suppress(OSError):  # it is none, and one was asked for all the same
        size = os.get_terminal_size(_STDIN)
        if size.columns and size.lines:
            return size
    return shutil.get_terminal_size()


async def _talk(running: Exec) -> int:
    """Pass on what comes on either side until the command ends."""
    feeding = asyncio.create_task(_feed(running))
    try:
        while (said := await running.read()) is not None:
            # In a thread: whoever reads ours may be slow, and the connection must be looked after meanwhile.
            try:
                await asyncio.to_thread(_write_all, _STDOUT if said[0] == 1 else _STDERR, said[1])
            except BrokenPipeError:
                return _BROKEN_PIPE
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    assert running.exit_code is not None
    return running.exit_code


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


async def _feed(running: Exec) -> None:
    """Our input, as fast as the command takes it; a thread reads it, for a file cannot be waited for otherwise."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    taken = threading.Semaphore(4)

    def read() -> None:
        data = b"-"
        while data:
            taken.acquire()
            try:
                data = os.read(_STDIN, _CHUNK)
            except OSError:  # it was closed, or is no longer our terminal
                data = b""
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(chunks.put_nowait, data)

    threading.Thread(target=read, daemon=True).start()
    while data := await chunks.get():
        await running.write(data)
        taken.release()
    await running.close_stdin()


@contextmanager
def _raw() -> Iterator[None]:
    """Every key goes through, Ctrl-C, too; our terminal is as it was afterwards."""
    if not os.isatty(_STDIN):
        yield
        return
    before = termios.tcgetattr(_STDIN)
    tty.setraw(_STDIN)
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@asynccontextmanager
async def _resizing(running: Exec) -> AsyncIterator[None]:
    """The command's terminal is as large as ours, also when that changes."""
    loop = asyncio.get_running_loop()
    telling: set[asyncio.Task[None]] = set()

    def changed() -> None:
        size = _size()
        task = asyncio.create_task(running.resize(size.columns, size.lines))
        telling.add(task)
        task.add_done_callback(telling.discard)

    loop.add_signal_handler(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@asynccontextmanager
async def _never() -> AsyncIterator[None]:
    yield
