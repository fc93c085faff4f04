"""Latest status (sighting) of each attempt, and its watchers. Kept in memory by an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Generic, Protocol, TypeVar

from commonage.domain.sightings import Seen, Sighting

_T = TypeVar("_T")
_ORDER = {Seen.STARTING: 0, Seen.RUNNING: 1, Seen.ENDED: 2}


class InThread(Protocol):
    """Runs short blocking work in a thread."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]:
        """Return the result of `work`."""
        ...


class Sighted(Protocol):
    """An attempt as an engine keeps it: its latest status; `ended` is set with the final one."""

    sighting: Sighting
    ended: asyncio.Event


R = TypeVar("R", bound=Sighted)


class NoticeBoard(Generic[R]):
    """The runs by attempt id, and the watchers."""

    def __init__(self) -> None:
        self.runs: dict[str, R] = {}
        self._watchers: set[asyncio.Queue[Sighting]] = set()

    def __iter__(self) -> Iterator[R]:
        return iter(list(self.runs.values()))

    def tell(self, run: R, sighting: Sighting) -> None:
        """Take a newer status; one that would go backwards is ignored."""
        if _ORDER[sighting.seen] < _ORDER[run.sighting.seen] or run.sighting.seen is Seen.ENDED:
            return
        run.sighting = sighting
        if sighting.seen is Seen.ENDED:
            run.ended.set()
        for watcher in self._watchers:
            watcher.put_nowait(sighting)

    async def watch(self) -> AsyncGenerator[Sighting]:
        """Yield statuses from now on."""
        mine: asyncio.Queue[Sighting] = asyncio.Queue()
        self._watchers.add(mine)
        try:
            while True:
                yield await mine.get()
        finally:
            self._watchers.discard(mine)
