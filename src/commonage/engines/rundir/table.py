"""Latest status of each attempt, and its watchers. Kept in memory by an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Generic, Protocol, TypeVar

from commonage.domain.statuses import Phase, Status

_T = TypeVar("_T")
_PHASE_ORDER = {Phase.STARTING: 0, Phase.RUNNING: 1, Phase.ENDED: 2}


class InThread(Protocol):
    """Runs short blocking work in a thread."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]: ...


class TrackedRun(Protocol):
    """An attempt as an engine keeps it: its latest status; `ended` is set with the final one."""

    status: Status
    ended: asyncio.Event


R = TypeVar("R", bound=TrackedRun)


class RunTable(Generic[R]):
    def __init__(self) -> None:
        self.runs: dict[str, R] = {}
        self._watchers: set[asyncio.Queue[Status]] = set()

    def __iter__(self) -> Iterator[R]:
        return iter(list(self.runs.values()))

    def tell(self, run: R, status: Status) -> None:
        """Take a newer status; one that would go backwards is ignored."""
        if _PHASE_ORDER[status.phase] < _PHASE_ORDER[run.status.phase] or run.status.phase is Phase.ENDED:
            return
        run.status = status
        if status.phase is Phase.ENDED:
            run.ended.set()
        for watcher in self._watchers:
            watcher.put_nowait(status)

    async def watch(self) -> AsyncGenerator[Status]:
        mine: asyncio.Queue[Status] = asyncio.Queue()
        self._watchers.add(mine)
        try:
            while True:
                yield await mine.get()
        finally:
            self._watchers.discard(mine)
