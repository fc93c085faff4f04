"""Start limiter: a few sessions start at a time on each node, first come, first served.

A Jupyter server uses the CPU all the time until it answers. Thirty at once on a few cores would share them, and the
first would answer when the last does; with a limit the first answers after seconds. Used by the engines' launchers,
once the image is present.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import WaitingForOtherSessions
from commonage.domain.workloads import Kind
from commonage.engines.containers.run import Run
from commonage.ports.agents import OnProgress

MAX_S = 30.0
"""Seconds after which a session that does not answer yet no longer delays others."""
_BESIDES = 1  # more than the number of cores, because a start also waits for networks and disks
_POLL_S = 0.25


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
                        with suppress(TimeoutError):
                            await asyncio.wait_for(run.ended.wait(), _POLL_S)
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
