"""Stopping, status and logs for all engines that keep their attempts in run folders.

Base class of engines, which implement how an attempt ends.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from commonage.domain.errors import EngineFailure, NotFound
from commonage.domain.iterations import Iterations
from commonage.domain.statuses import LogLine, Phase, Status
from commonage.engines.rundir.log_limit import LogLimit, RunWithLog
from commonage.engines.rundir.logs import open_log, read_log
from commonage.engines.rundir.runs import Runs
from commonage.engines.rundir.table import RunTable
from commonage.engines.rundir.tasks import Tasks
from commonage.files.safe_path import SafePath
from commonage.ports.engine import Engine


class EngineRun(RunWithLog, Protocol):
    """An attempt as an engine keeps it.

    `begun` is done once the request is written to disk, or writing it failed. `kill_at` is the event loop's time at
    which a stop turns to SIGKILL, and `ending` is the task that ends it.
    """

    begun: asyncio.Future[None]
    ending: asyncio.Task[None] | None
    kill_at: float


R = TypeVar("R", bound=EngineRun)


class RunsEngine(Engine, ABC, Generic[R]):
    """Engine port methods that need only run folders, which lie in `folder`, and a run table.

    `max_log_mib`: disk limit for the log of an attempt. `shared`: the folder for files that other nodes see (`Runs`).
    """

    def __init__(
        self,
        site: str,
        name: str,
        folder: Path,
        table: RunTable[R],
        max_log_mib: int,
        shared: SafePath | None = None,
    ) -> None:
        self._site = site
        self._table = table
        self._files = Runs(folder, shared)
        self._tasks = Tasks(name)
        self._in_thread, self._spawn, self._keep = self._tasks.in_thread, self._tasks.spawn, self._tasks.keep
        self._log_limit = LogLimit(table, max_log_mib, self._in_thread)

    @property
    def site(self) -> str:
        return self._site

    def loops(self) -> Sequence[Iterations]:
        return self._tasks.loops

    @abstractmethod
    async def _end(self, run: R) -> None:
        """End the attempt and wait until it ended; `kill_at` may move closer meanwhile."""

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        """Request the end and start ending it.

        An attempt that is not known yet will never start. Raises EngineFailure.
        """
        run = self._table.runs.get(attempt_id)
        if run is None:
            try:
                await self._in_thread(lambda: self._stop_early(attempt_id))
            except OSError as error:
                words = f"that {attempt_id} is not to start cannot be written: {error}"
                raise EngineFailure(words, retryable=True) from error
            return
        if run.status.phase is Phase.ENDED:
            return
        run.kill_at = min(run.kill_at, asyncio.get_running_loop().time() + grace_s)
        if run.ending is None or run.ending.done():
            run.ending = self._spawn(self._end(run))

    def _stop_early(self, attempt_id: str) -> None:
        try:
            folder = self._files.folder(attempt_id)
        except EngineFailure:  # not a valid id: no attempt has it
            return
        if not self._files.is_forgotten(attempt_id):
            folder.path.mkdir(mode=0o700, exist_ok=True)
            folder.forbid_start()

    async def forget(self, attempt_id: str) -> None:
        run = self._table.runs.get(attempt_id)
        if run is None or run.status.phase is not Phase.ENDED:
            return
        await self._remove(run)
        await self._log_limit.cut(run)
        await self._in_thread(lambda: self._files.forget(attempt_id))
        self._table.runs.pop(attempt_id, None)

    async def _remove(self, run: R) -> None:
        """Remove what exists of it outside its run folder. Raises EngineFailure."""

    async def statuses(self) -> Sequence[Status]:
        return [run.status for run in self._table]

    def watch(self) -> AsyncIterator[Status]:
        return self._table.watch()

    async def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        descriptor = await self._in_thread(lambda: open_log(self._files.log_places(attempt_id)))
        if descriptor is None:
            raise NotFound(f"there is no log of {attempt_id[:100]} (any more)", code="log-not-found")

        def has_ended() -> bool:
            run = self._table.runs.get(attempt_id)
            return run is None or run.status.phase is Phase.ENDED

        async for line in read_log(descriptor, offset, tail, follow, has_ended):
            yield line
