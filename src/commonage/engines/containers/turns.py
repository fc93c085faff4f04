"""Sessions come up a few at a time on each machine, who came first before others.

All that a Jupyter server does until it answers is reckoning. Thirty at once on a few cores would share them, and the
first would answer when the last does; in turns the first answers after seconds. Used by the engines' launchers, once
the image is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from urllib.parse import urlsplit

from commonage.domain.workloads import Kind
from commonage.engines.containers.board import Run
from commonage.ports.agents import Told

MOST_S = 30.0
"""After that a session that still does not answer no longer keeps others from their turn."""
_BESIDES = 1  # more than there are cores, as a start also waits for networks and disks
_LOOK_S = 0.25


class Turns:
    """Of one engine's machines. `spawn` starts a task of the engine's."""

    def __init__(self, spawn: Callable[[Coroutine[None, None, None]], object]) -> None:
        self._spawn = spawn
        self._machines: dict[str, asyncio.Semaphore] = {}
        self._coming_up: dict[str, str] = {}

    async def take(self, run: Run, node: str, cores: int, told: Told) -> None:
        """Wait until this attempt may start on its machine; idempotent. Only sessions wait."""
        if run.order.kind is not Kind.SESSION or run.id in self._coming_up:
            return
        machine = self._machines.setdefault(node, asyncio.Semaphore(cores + _BESIDES))
        if machine.locked():
            others = sum(1 for one in self._coming_up.values() if one == node)
            told(f"waiting for its turn, as {others} sessions are coming up on {node}", None)
        await machine.acquire()
        self._coming_up[run.id] = node
        self._spawn(self._until_it_is_up(run, machine))

    async def _until_it_is_up(self, run: Run, machine: asyncio.Semaphore) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(MOST_S):
                    while not run.ended.is_set() and not await _answers(run.sighting.url):
                        with suppress(TimeoutError):
                            await asyncio.wait_for(run.ended.wait(), _LOOK_S)
        finally:
            del self._coming_up[run.id]
            machine.release()


async def _answers(url: str | None) -> bool:
    """True if an HTTP server answers there, whatever it says. An open port may be Docker's own."""
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
