"""Child processes of the control plane (JupyterHub and its proxy): started, watched, restarted and stopped with it.

Their output goes line by line into logs/NAME.log and into the server's log. Sessions and jobs are no children: they
outlive the control plane and belong to the engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from commonage.server import ServerError
from commonage.server.processes.child_output import ChildOutput

log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 10.0
_STEADY_AFTER_S = 60.0  # a child that ran this long resets its back-off
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded before any fork: a forked child must not load anything


class ChildFailed(ServerError):
    """A child did not become ready; the message ends with its last lines of output."""


@dataclass(frozen=True, slots=True)
class Child:
    """The command of one child and its readiness conditions.

    `ready_line` must appear in its output, and `ready` must return true, before it counts as ready (either may be
    omitted). `ready_s` is the timeout for that, `grace_s` the time between SIGTERM and SIGKILL. `reads` are files that
    it reads once, at its start, in addition to those of `argv`.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log_path: Path
    cwd: Path
    reads: Sequence[Path] = ()
    ready_line: str | None = None
    ready: Callable[[], Awaitable[bool]] | None = None
    ready_s: float = 60.0
    grace_s: float = 10.0


@dataclass(slots=True)
class ChildState:
    name: str
    pid: int | None = None
    ready: bool = False
    restarts: int = 0


class Supervisor:
    """Keeps children running from `start` to `stop`. Starts them in the given order and stops them in reverse.

    Must be started from the main thread: the kernel ties "end with the parent" to the thread that forked.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self._keepers = [_Keeper(child) for child in children]

    async def start(self) -> None:
        """Start each child when the previous one is ready. Raises ChildFailed; no child is left running then."""
        try:
            for keeper in self._keepers:
                await keeper.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all children; returns when none of their processes is left."""
        for keeper in reversed(self._keepers):
            await keeper.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def states(self) -> list[ChildState]:
        return [keeper.state for keeper in self._keepers]


class _Keeper:
    def __init__(self, child: Child) -> None:
        self._child = child
        self.state = ChildState(child.name)
        self._output = ChildOutput(child.name, child.log_path)
        self._extra = {"child": child.name}
        self._stopping = asyncio.Event()
        self._first_ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._first_ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(), name=f"child {self._child.name}")
        await asyncio.shield(self._first_ready)

    async def stop(self) -> None:
        self._stopping.set()
        self._output.be_quiet()
        if self._task is not None and self._first_ready is not None:
            await self._task
            if self._first_ready.done():
                self._first_ready.exception()  # mark the exception as retrieved: the caller of start may be gone
        self._output.close()

    async def _keep(self) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._stopping.is_set():
            lived_s, failure = await self._run_once()
            if self._first_ready is not None and not self._first_ready.done():
                # The first start belongs to the caller, which decides what a failure means.
                self._first_ready.set_exception(failure or ChildFailed(f"{self._child.name} was stopped"))
                return
            if self._stopping.is_set():
                return
            if failure is not None:
                log.error("%s", failure, extra=self._extra)
            delay_s = _FIRST_DELAY_S if lived_s >= _STEADY_AFTER_S else delay_s
            log.warning("%s ended, starting it again in %.1f s", self._child.name, delay_s, extra=self._extra)
            self.state.restarts += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            delay_s = min(delay_s * 2, _LONGEST_DELAY_S)

    async def _run_once(self) -> tuple[float, ChildFailed | None]:
        """Run the child once. Returns the seconds it ran, and why it never became ready."""
        loop = asyncio.get_running_loop()
        born = loop.time()
        try:
            process, output = await _spawn(self._child)
        except OSError as error:
            return 0.0, ChildFailed(f"{self._child.name} cannot be started ({self._child.argv[0]}): {error}")
        self.state.pid = process.pid
        log.info("%s started", self._child.name, extra={**self._extra, "pid": process.pid})
        pump = asyncio.create_task(self._output.pump(output))
        exited = asyncio.create_task(process.wait())
        failure: ChildFailed | None = None
        try:
            failure = await self._until_ready(exited)
            if failure is None and not self._stopping.is_set():
                await first_of(exited, self._stopping.wait())
        finally:
            self.state.ready = False
            await _end(process, exited, self._child.grace_s)
            self.state.pid = None
            # Do not wait for a process that left the child's group and holds its output open.
            await asyncio.wait({pump}, timeout=1)
            pump.cancel()
        log.info("%s ended with code %s", self._child.name, process.returncode, extra=self._extra)
        return loop.time() - born, failure

    async def _until_ready(self, exited: asyncio.Task[int]) -> ChildFailed | None:
        """Wait for the first of readiness, an early exit, and the request to stop."""
        readiness = asyncio.create_task(self._ready())
        try:
            await first_of(readiness, exited, self._stopping.wait())
        finally:
            readiness.cancel()  # no effect if it is done
        if exited.done() and not self._stopping.is_set():
            return self._failure(f"ended with code {exited.result()} before it was ready")
        if not readiness.done() or readiness.cancelled():
            return None
        if not readiness.result():
            return self._failure(f"was not ready within {self._child.ready_s:g} s")
        self.state.ready = True
        log.info("%s is ready", self._child.name, extra=self._extra)
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_result(None)
        return None

    async def _ready(self) -> bool:
        try:
            async with asyncio.timeout(self._child.ready_s):
                if self._child.ready_line is not None:
                    await self._output.seen(self._child.ready_line)
                while self._child.ready is not None and not await self._child.ready():  # noqa: ASYNC110 - asks a process
                    await asyncio.sleep(0.05)
        except TimeoutError:
            return False
        return True

    def _failure(self, what: str) -> ChildFailed:
        lines = "\n".join(f"  {line}" for line in self._output.last_lines())
        return ChildFailed(f"{self._child.name} {what}. See {self._child.log_path}. Last output:\n{lines}")


async def _spawn(child: Child) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
    """The process and its output. With asyncio's own pipe, `wait` would wait for all processes that hold it open."""
    loop = asyncio.get_running_loop()
    ours, theirs = os.pipe()
    output = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), os.fdopen(ours, "rb"))

    try:
        process = await asyncio.create_subprocess_exec(
            *child.argv,
            env=dict(child.env),
            cwd=child.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=theirs,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # its own group: Ctrl-C in the terminal is for the server, not for the child
            preexec_fn=end_with_parent(),
        )
    finally:
        os.close(theirs)
    return process, output


def end_with_parent() -> Callable[[], None]:
    """Makes a forked child end with this process; for `preexec_fn`. Call it in the parent."""
    parent = os.getpid()

    def prepare() -> None:
        # If the parent ended between fork and prctl, the kernel sends no signal.
        if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != parent:
            os._exit(127)

    return prepare


def inherited_environment() -> dict[str, str]:
    """The server's environment without Commonage's settings: authenticators read theirs there, and ours are secret."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COMMONAGE_")}


async def _end(process: asyncio.subprocess.Process, exited: asyncio.Task[int], grace_s: float) -> None:
    """SIGTERM to the child's group; SIGKILL after the grace period, also to processes that outlive the child."""
    if not exited.done():
        _signal_group(process.pid, signal.SIGTERM)
        await asyncio.wait({exited}, timeout=grace_s)
    _signal_group(process.pid, signal.SIGKILL)
    await exited


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


async def first_of(*waited: asyncio.Future[Any] | Coroutine[Any, Any, object]) -> None:
    """Return when the first is done. The coroutines among them are cancelled; tasks are left to their owner."""
    own = [asyncio.create_task(one) for one in waited if not isinstance(one, asyncio.Future)]
    try:
        await asyncio.wait(
            [*own, *(one for one in waited if isinstance(one, asyncio.Future))], return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for task in own:
            task.cancel()
