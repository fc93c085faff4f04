"""Sessions come up a few at a time on each machine, who came first before others.

All that a Jupyter server does until it answers is reckoning. Thirty at once on a few cores would share them, and the
first would answer when the last does; in turns the first answers after seconds. Used by the engines' launchers, once
the image is there.
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
from commonage.engines.containers.board import Run
from commonage.ports.agents import Told

MOST_S = 30.0
"""After that a session that still does not answer no longer keeps others from their turn."""
_BESIDES = 1  # more than there are cores, as a start also waits for networks and disks
_LOOK_S = 0.25


@dataclass(eq=False, slots=True)
class _Place:
    """Somebody's place in a machine's line: `first` stood ahead of it when it came."""

    told: Told
    waits: Reason
    first: int

    def tell(self, ahead: int) -> None:
        """Say how much of its wait is over, when so many are ahead of it."""
        self.told(self.waits, 1 - (ahead + 1) / (self.first + 1))


class Turns:
    """Of one engine's machines. `spawn` starts a task of the engine's."""

    def __init__(self, spawn: Callable[[Coroutine[None, None, None]], object]) -> None:
        self._spawn = spawn
        self._machines: dict[str, asyncio.Semaphore] = {}
        self._lines: dict[str, list[_Place]] = {}
        self._coming_up: set[str] = set()

    async def take(self, run: Run, node: str, cores: int, told: Told) -> None:
        """Wait until this attempt may start on its machine; idempotent. Only sessions wait."""
        if run.order.kind is not Kind.SESSION or run.id in self._coming_up:
            return
        most = cores + _BESIDES
        machine = self._machines.setdefault(node, asyncio.Semaphore(most))
        line = self._lines.setdefault(node, [])
        place = _Place(told, WaitingForOtherSessions(at_once=most, node=node), len(line))
        line.append(place)
        try:
            if machine.locked():
                place.tell(len(line) - 1)
            await machine.acquire()
        finally:
            line.remove(place)
            for ahead, other in enumerate(line):
                other.tell(ahead)
        self._coming_up.add(run.id)
        self._spawn(self._until_it_is_up(run, machine))

    async def _until_it_is_up(self, run: Run, machine: asyncio.Semaphore) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(MOST_S):
                    while not run.ended.is_set() and not await _answers(run.sighting.url):
                        with suppress(TimeoutError):
                            await asyncio.wait_for(run.ended.wait(), _LOOK_S)
        finally:
            self._coming_up.discard(run.id)
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
