"""In-memory state of attempts: their latest statuses, and the watchers. Kept by an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.engines.rundir.runs import RunFolder

_PHASE_ORDER = {Phase.STARTING: 0, Phase.RUNNING: 1, Phase.ENDED: 2}


@dataclass(slots=True, eq=False)
class EngineRun:
    """One attempt. `begun` is done once the request is written to disk, or writing it failed.

    `ended` is set with the final status. `kill_at` is the event loop's time at which a stop turns to SIGKILL, and
    `ending` is the task that ends it. `port` is the port it listens on, if one was chosen for it.
    """

    request: StartRequest
    folder: RunFolder
    status: Status
    port: int | None = None
    begun: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.Task[None] | None = None
    kill_at: float = inf
    pid: int | None = None

    @property
    def id(self) -> str:
        return self.request.attempt_id

    @property
    def is_running(self) -> bool:
        return self.status.phase is Phase.RUNNING

    async def wait_for_end(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self.ended.wait(), max(timeout_s, 0.001))
        except TimeoutError:
            return


R = TypeVar("R", bound=EngineRun)


class RunTable(Generic[R]):
    def __init__(self) -> None:
        self.runs: dict[str, R] = {}
        self._watchers: set[asyncio.Queue[Status]] = set()

    def __iter__(self) -> Iterator[R]:
        return iter(list(self.runs.values()))

    def live(self) -> list[R]:
        """The attempts that have not ended."""
        return [run for run in self if run.status.phase is not Phase.ENDED]

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
        statuses: asyncio.Queue[Status] = asyncio.Queue()
        self._watchers.add(statuses)
        try:
            while True:
                yield await statuses.get()
        finally:
            self._watchers.discard(statuses)
