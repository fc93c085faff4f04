"""Starts containers with retries and a few at a time, and ends them: SIGTERM, then SIGKILL. Called by the engine.

A Jupyter server uses the CPU all the time until it answers. Thirty at once on a few cores would share them, and the
first would answer when the last does. So only a few sessions start at a time on each node, first come, first served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import WaitingForOtherSessions
from commonage.domain.workloads import Kind
from commonage.engines.containers.attempt_backend import AttemptBackend, Run, Signal, Unreachable
from commonage.engines.rundir.tasks import retry_start
from commonage.ports.agents import OnProgress

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each retry: enough for a registry cleanup, or for freeing disk space."""
_POLL_S = 0.25
_ANSWERS_POLL_S = 0.1
_KILL_RETRY_S = 2.0
_log = logging.getLogger(__name__)


async def launch_with_retries(run: Run, container_client: AttemptBackend, on_progress: OnProgress) -> None:
    """Launch it. Raises permanent errors and Unreachable at once, and a temporary error after the last retry."""
    await retry_start(lambda: container_client.launch(run, on_progress), PAUSES_S, on_progress, not_for=Unreachable)


async def end_run(run: Run, container_client: AttemptBackend, settle: Callable[[Run], Awaitable[None]]) -> None:
    """Send SIGTERM to its program, and SIGKILL from `run.kill_at` on (which may move closer), until it ended."""
    now = asyncio.get_running_loop().time
    asked = False
    while not run.ended.is_set() and now() < run.kill_at:
        asked = asked or await _sent(run, container_client, "SIGTERM")
        await run.wait_for_end(min(_POLL_S, run.kill_at - now()))
    while not run.ended.is_set():
        await _sent(run, container_client, "SIGKILL")
        await run.wait_for_end(_KILL_RETRY_S)
        if not run.ended.is_set():  # the event of its end may have been lost
            await settle(run)


async def _sent(run: Run, container_client: AttemptBackend, signal: Signal) -> bool:
    try:
        await container_client.signal(run, signal)
    except EngineFailure as error:
        _log.warning("cannot send %s to %s, will try again: %s", signal, run.id, error)
        return False
    return True


MAX_S = 30.0
"""Seconds after which a session that does not answer yet no longer delays others."""
_BESIDES = 1  # more than the number of cores, because a start also waits for networks and disks


@dataclass(eq=False, slots=True)
class _Waiter:
    """A place in a node's queue: `first` jobs were ahead of it when it came."""

    on_progress: OnProgress
    waits: Reason
    first: int

    def tell(self, ahead: int) -> None:
        """Report the fraction of its wait that is over, for this number ahead of it."""
        self.on_progress(self.waits, 1 - (ahead + 1) / (self.first + 1))


class StartLimiter:
    """The queues of one engine's nodes. `spawn` starts a task of the engine."""

    def __init__(self, spawn: Callable[[Coroutine[None, None, None]], object]) -> None:
        self._spawn = spawn
        self._nodes: dict[str, asyncio.Semaphore] = {}
        self._lines: dict[str, list[_Waiter]] = {}
        self._coming_up: set[str] = set()

    def is_busy(self) -> bool:
        """True while sessions are starting, or wait for it."""
        return bool(self._coming_up) or any(self._lines.values())

    async def take(self, run: Run, node: str, cores: int, on_progress: OnProgress) -> None:
        """Wait until this attempt may start on its node; idempotent. Only sessions wait."""
        if run.request.kind is not Kind.SESSION or run.id in self._coming_up:
            return
        most = cores + _BESIDES
        slots = self._nodes.setdefault(node, asyncio.Semaphore(most))
        line = self._lines.setdefault(node, [])
        waiter = _Waiter(on_progress, WaitingForOtherSessions(at_once=most, node=node), len(line))
        line.append(waiter)
        try:
            if slots.locked():
                waiter.tell(len(line) - 1)
            await slots.acquire()
        finally:
            line.remove(waiter)
            for ahead, other in enumerate(line):
                other.tell(ahead)
        self._coming_up.add(run.id)
        self._spawn(self._until_it_is_up(run, slots))

    async def _until_it_is_up(self, run: Run, slots: asyncio.Semaphore) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_S):
                    while not run.ended.is_set() and not await _answers(run.status.url):
                        await run.wait_for_end(_ANSWERS_POLL_S)
        finally:
            self._coming_up.discard(run.id)
            slots.release()


async def _answers(url: str | None) -> bool:
    """True if an HTTP server answers there, with any response. An open port may be Docker's own."""
    if url is None:
        return False
    parts = urlsplit(url)
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        try:
            writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
            return bool(await reader.read(1))
        finally:
            writer.close()
    return False
