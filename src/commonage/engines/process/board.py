"""What the engine knows of its attempts in memory.

The newest sighting of each, and who is told when it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, TypeVar

from commonage.domain.sightings import Order, Seen, Sighting
from commonage.engines.process.runs import RunFolder

_T = TypeVar("_T")
_ORDER = {Seen.STARTING: 0, Seen.RUNNING: 1, Seen.ENDED: 2}


class InThread(Protocol):
    """Runs what may block a little."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]:
        """The result of `work`."""
        ...


@dataclass(slots=True, eq=False)
class Run:
    """An attempt of ours. `begun` is done once it is written down and started, or failed to be.

    `kill_at` is the loop's time at which a stop turns to force. `pidfd` watches its shim, `pid`, while that
    lives.
    """

    order: Order
    folder: RunFolder
    sighting: Sighting
    port: int | None = None
    begun: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    preparing: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    kill_at: float = inf
    pid: int | None = None
    pidfd: int | None = None
    over_memory: bool = False

    @property
    def id(self) -> str:
        """The attempt's id."""
        return self.order.attempt_id

    @property
    def is_running(self) -> bool:
        """True while it is seen running."""
        return self.sighting.seen is Seen.RUNNING


class Board:
    """The runs by attempt id, and the watchers."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self._watchers: set[asyncio.Queue[Sighting]] = set()

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self.runs.values()))

    def tell(self, run: Run, sighting: Sighting) -> None:
        """Take a newer sighting; one that would go back is ignored."""
        if _ORDER[sighting.seen] < _ORDER[run.sighting.seen] or run.sighting.seen is Seen.ENDED:
            return
        run.sighting = sighting
        if sighting.seen is Seen.ENDED:
            run.ended.set()
        for watcher in self._watchers:
            watcher.put_nowait(sighting)

    async def watch(self) -> AsyncGenerator[Sighting]:
        """Sightings from now on."""
        mine: asyncio.Queue[Sighting] = asyncio.Queue()
        self._watchers.add(mine)
        try:
            while True:
                yield await mine.get()
        finally:
            self._watchers.discard(mine)
