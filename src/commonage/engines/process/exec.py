"""Commands in the context of an attempt: children of the server, controlled together with the attempt.

Each joins the attempt's control groups and carries a mark in addition to the attempt's own, so that it ends with the
attempt, and all its descendants end with it. Called by the engine.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.engines.process.descriptors import Descriptor, settle
from commonage.engines.process.environments import Environments
from commonage.engines.process.groups.groups import Groups
from commonage.engines.process.groups.marked import FRESH_S
from commonage.engines.process.launcher import Launcher
from commonage.engines.process.processes import send
from commonage.engines.process.run import Run, Table
from commonage.engines.rundir.proc import process_info, variable_of
from commonage.engines.rundir.programs import GRACE_S, MARK, NAME, SHELL, new_mark
from commonage.engines.rundir.tasks import Tasks, make_or_end
from commonage.ports.execs import ERR, OUT, ExecStream, Terminal

_BEGIN = (
    """
groups=$1 terminal=$2
shift 2
IFS=:
for group in $groups; do
  echo 0 >"$group" || exit 125
done
unset IFS
# The leader of a session gets the first terminal that it opens as its own.
if [ -n "$terminal" ]; then exec <>"$terminal" >&0 2>&0; fi
unset groups group terminal
"""
    + SHELL
)
_KILL_ROUNDS = 40
_KILL_PAUSE_S = 0.005
_WAITING = 4


@dataclass(frozen=True, slots=True)
class _Child:
    """A started process, and our ends of its input and output. `slave`: its end of the terminal."""

    process: subprocess.Popen[bytes]
    mark: str
    stdin: int
    outputs: Mapping[int, int]
    slave: int | None = None


class Execs:
    def __init__(
        self, table: Table, groups: Groups, tasks: Tasks, launcher: Launcher, environments: Environments
    ) -> None:
        self._table = table
        self._groups = groups
        self._tasks = tasks
        self._launcher = launcher
        self._environments = environments
        self._live: set[ProcessExec] = set()

    def end_left_over(self) -> None:
        """End commands of an earlier server process, which have no listener any more. Blocks: call it in a thread."""
        for run in self._table.live():
            send([pid for pid in self._groups.pids(run.id) if variable_of(pid, MARK)], signal.SIGKILL)

    async def begin(self, run: Run, command: Sequence[str], terminal: Terminal | None) -> ExecStream:
        """Start one. Raises EngineFailure."""
        return await make_or_end(self._make(run, command, terminal))

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in list(self._live)))

    async def _make(self, run: Run, command: Sequence[str], terminal: Terminal | None) -> ProcessExec:
        child = await self._tasks.in_thread(lambda: self._spawn(run, command, terminal))
        made = ProcessExec(child, run, self._groups, self._tasks, self._live.discard)
        self._live.add(made)
        return made

    def _spawn(self, run: Run, command: Sequence[str], terminal: Terminal | None) -> _Child:
        python = self._environments.ready(run.request.environment)
        if python is None:
            raise EngineFailure(f"the environment of {run.id} does not exist any more, so no command can run in it")
        program, cwd = self._launcher.exec_program(run.request, run.folder, run.port, python)
        mark = new_mark()
        variables = {**program.variables, MARK: mark}
        if terminal is not None:
            variables["TERM"] = terminal.kind
        groups = ":".join(self._groups.joins(run.id))
        try:
            if terminal is None:
                return _spawn_piped(_arguments(groups, "", command), variables, cwd, mark)
            return _spawn_at_terminal(groups, command, variables, cwd, mark, terminal)
        except (OSError, ValueError) as error:
            raise EngineFailure(f"the command cannot be started in {run.id}: {error}") from error


def _arguments(groups: str, terminal: str, command: Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", _BEGIN, NAME, groups, terminal, *command]


def _spawn_piped(arguments: Sequence[str], variables: Mapping[str, str], cwd: Path, mark: str) -> _Child:
    pipes = [os.pipe() for _ in range(3)]
    (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = pipes
    theirs = (theirs_in, theirs_out, theirs_err)
    try:
        process = subprocess.Popen(
            arguments, stdin=theirs_in, stdout=theirs_out, stderr=theirs_err, cwd=cwd, env=variables,
            start_new_session=True,
        )  # fmt: skip
    except BaseException:
        _close(ours_in, ours_out, ours_err)
        raise
    finally:
        _close(*theirs)
    return _Child(process, mark, ours_in, {OUT: ours_out, ERR: ours_err})


def _spawn_at_terminal(
    groups: str, command: Sequence[str], variables: Mapping[str, str], cwd: Path, mark: str, terminal: Terminal
) -> _Child:
    master, slave = pty.openpty()
    try:
        _set_size(master, terminal.columns, terminal.rows)
        process = subprocess.Popen(
            _arguments(groups, os.ttyname(slave), command), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
            cwd=cwd, env=variables, start_new_session=True,
        )  # fmt: skip
    except BaseException:
        _close(master, slave)
        raise
    # Kept open, or the terminal would be gone before the child has opened it.
    return _Child(process, mark, master, {OUT: master}, slave)


def _close(*descriptors: int) -> None:
    for one in descriptors:
        os.close(one)


def _set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class ProcessExec:
    """Implements `ports.execs.ExecStream`. A task of the engine follows it to its end, and then calls `on_end`."""

    def __init__(
        self, child: _Child, run: Run, groups: Groups, tasks: Tasks, on_end: Callable[[ProcessExec], None]
    ) -> None:
        self._child = child
        self._run = run
        self._groups = groups
        self._in_thread = tasks.in_thread
        self._sessions = {child.process.pid}
        ends = {number: Descriptor(number) for number in {child.stdin, *child.outputs.values()}}
        self._ends = tuple(ends.values())
        self._stdin = ends[child.stdin]
        self._outputs = {stream: ends[number] for stream, number in child.outputs.items()}
        self._said: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(_WAITING)
        self._leaving = asyncio.Event()
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._is_read = False
        self._living = tasks.spawn(self._live())
        self._living.add_done_callback(lambda _: on_end(self))

    # --- the port -------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        await self._stdin.write(data)

    async def close_stdin(self) -> None:
        if self._child.slave is None:
            self._stdin.close()

    async def resize(self, columns: int, rows: int) -> None:
        if self._child.slave is not None and not self._stdin.is_closed:
            with suppress(OSError):
                _set_size(self._child.stdin, columns, rows)

    async def read(self) -> tuple[int, bytes] | None:
        if self._is_read:
            return None
        said = await self._said.get()
        self._is_read = said is None
        return said

    async def exit_code(self) -> int:
        return await asyncio.shield(self._code)

    async def close(self) -> None:
        self.end()
        await asyncio.wait([self._living])

    def end(self) -> None:
        self._leaving.set()

    # --- from start to end ----------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Run until it has ended, for any reason, and none of its processes is left."""
        delivering = asyncio.create_task(self._deliver())
        leaving = asyncio.create_task(self._leaving.wait())
        over = asyncio.create_task(self._run.ended.wait())
        exited = asyncio.create_task(_exit_of(self._child.process))
        try:
            await asyncio.wait({exited, leaving, over}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await self._in_thread(lambda: send(self._pids(), signal.SIGHUP))
                await asyncio.wait({exited}, timeout=GRACE_S)
            await self._in_thread(self._kill)
            await asyncio.wait({exited}, timeout=GRACE_S)
            for one in self._ends:
                one.read_out()
            await asyncio.wait({delivering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._kill_at_once()
            if not delivering.done():
                delivering.cancel()
                while not self._said.empty():
                    self._said.get_nowait()
                self._said.put_nowait(None)
            for task in (leaving, over, exited):
                task.cancel()
            self._finish()

    def _kill_at_once(self) -> None:
        """Kill it on cancellation: the engine finds the rest by its mark when it opens again."""
        if self._child.process.poll() is None:
            send([self._child.process.pid], signal.SIGKILL)

    def _finish(self) -> None:
        for one in self._ends:
            one.close()
        if self._child.slave is not None:
            os.close(self._child.slave)
        code = self._child.process.poll()
        if not self._code.done():
            self._code.set_result(128 + signal.SIGKILL if code is None else code if code >= 0 else 128 - code)

    async def _deliver(self) -> None:
        await asyncio.gather(*(self._pump(stream, end) for stream, end in self._outputs.items()))
        await self._said.put(None)

    async def _pump(self, stream: int, end: Descriptor) -> None:
        while data := await end.read():
            await self._said.put((stream, data))

    # --- its processes -----------------------------------------------------------------------------------------------

    def _pids(self) -> list[int]:
        """Processes that carry its mark, or share a session with one that did; searches only the attempt's."""
        found = {pid: info.session for pid in self._candidates() if (info := process_info(pid)) is not None}
        self._sessions |= {session for pid, session in found.items() if variable_of(pid, MARK) == self._child.mark}
        return [pid for pid, session in found.items() if session in self._sessions]

    def _candidates(self) -> set[int]:
        pid = self._child.process.pid
        leader = {pid} if self._child.process.poll() is None else set()
        return {*self._groups.pids(self._run.id), *leader}

    def _kill(self) -> None:
        # Without control groups a scan of all processes is cached briefly, and some are newer.
        pause_s = _KILL_PAUSE_S if self._groups.joins(self._run.id) else 1.2 * FRESH_S
        for _ in range(_KILL_ROUNDS):
            time.sleep(pause_s)
            pids = self._pids()
            if not pids:
                return
            send(pids, signal.SIGKILL)


async def _exit_of(process: subprocess.Popen[bytes]) -> None:
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(process.pid)  # our own child, with no other waiter
    ended = loop.create_future()
    loop.add_reader(pidfd, settle, ended)
    try:
        await ended
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    process.wait()
