"""`commonage exec`: runs a command inside a workload, with a terminal or with pipes."""

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

from commonage.cli.connection import Server, calls_server, connect, find_workload
from commonage.cli.workloads.follow import INTERRUPTED

if TYPE_CHECKING:
    from commonage.sdk.execs import Exec
    from commonage.wire.execs import TerminalIn

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_CHUNK = 32 * 1024
_BROKEN_PIPE = 141  # exit code, as with SIGPIPE


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("workload", metavar="ID")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND…")
@click.option(
    "-t", "--tty/--no-tty", "use_tty", default=None,
    help="Run it with a terminal, or with pipes.  [default: a terminal if stdin is one]",
)  # fmt: skip
@calls_server
def exec_(server: Server, workload: str, command: tuple[str, ...], use_tty: bool | None) -> None:
    """Run a command inside a running session, job or service; by default a shell.

    The command has the folder, variables, limits and network of the workload. The exit code is that of the command; 127
    if it is not found. When this client ends for any reason, the command and its child processes are ended, too.

    \b
    Examples:
      commonage exec 7k2v
      commonage exec train -- nvidia-smi
      commonage exec train -- tar -c results | tar -x
    """
    with connect(server) as client:
        workload_id = find_workload(client, workload).id
    with_terminal = os.isatty(_STDIN) if use_tty is None else use_tty
    command = command[1:] if command[:1] == ("--",) else command
    try:
        code = asyncio.run(_run(server, workload_id, command, with_terminal))
    except KeyboardInterrupt:
        code = INTERRUPTED
    # A thread may still wait for input. Exit without waiting for it.
    sys.stdout.flush()
    sys.exit(code)


async def _run(server: Server, workload: str, command: Sequence[str], with_terminal: bool) -> int:
    from commonage.sdk import AsyncClient

    terminal = _terminal() if with_terminal else None
    async with (
        AsyncClient(server.url, server.token) as client,
        client.exec(workload, command, terminal=terminal) as running,
    ):
        if not with_terminal:
            return await forward(running)
        with _raw():
            async with _resizing(running):
                return await forward(running)


def _terminal() -> TerminalIn:
    from commonage.wire.execs import TerminalIn

    size = _size()
    kind = os.environ.get("TERM") or "xterm"
    return TerminalIn(columns=size.columns, rows=size.lines, kind=kind)


def _size() -> os.terminal_size:
    """The size of the terminal at stdin. COLUMNS may be outdated, or that of another terminal."""
    with suppress(OSError):  # --tty without a terminal
        size = os.get_terminal_size(_STDIN)
        if size.columns and size.lines:
            return size
    return shutil.get_terminal_size()


async def forward(running: Exec) -> int:
    feeding = asyncio.create_task(_feed(running))
    try:
        while (chunk := await running.read()) is not None:
            # In a thread: the reader of our output may be slow, and the connection needs the loop meanwhile.
            try:
                await asyncio.to_thread(_write_all, _STDOUT if chunk[0] == 1 else _STDERR, chunk[1])
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
    """Send stdin as fast as the command reads it. A thread reads it, because asyncio cannot wait for a file."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    slots = threading.Semaphore(4)

    def read() -> None:
        data = b"-"
        while data:
            slots.acquire()
            try:
                data = os.read(_STDIN, _CHUNK)
            except OSError:  # closed, or no longer our terminal
                data = b""
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(chunks.put_nowait, data)

    threading.Thread(target=read, daemon=True).start()
    while data := await chunks.get():
        await running.write(data)
        slots.release()
    await running.close_stdin()


@contextmanager
def _raw() -> Iterator[None]:
    """Pass every key through, Ctrl-C included. Restores the terminal at the end."""
    if not os.isatty(_STDIN):
        yield
        return
    before = termios.tcgetattr(_STDIN)
    tty.setraw(_STDIN)
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


@asynccontextmanager
async def _resizing(running: Exec) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    resizes: set[asyncio.Task[None]] = set()

    def changed() -> None:
        size = _size()
        task = asyncio.create_task(running.resize(size.columns, size.lines))
        resizes.add(task)
        task.add_done_callback(resizes.discard)

    loop.add_signal_handler(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
