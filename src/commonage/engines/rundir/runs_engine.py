"""Starting, stopping, status, logs and housekeeping for all engines that keep their attempts in run folders.

Base class of engines, which implement how an attempt starts and ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from commonage.domain.errors import EngineFailure, NotFound
from commonage.domain.iterations import Iterations
from commonage.domain.statuses import LogLine, Phase, StartRequest, Status
from commonage.engines.rundir.logs import LogLimit, open_log, read_log
from commonage.engines.rundir.programs import not_running
from commonage.engines.rundir.run import EngineRun, RunTable
from commonage.engines.rundir.runs import Runs
from commonage.engines.rundir.tasks import Tasks
from commonage.engines.rundir.workspaces import clear_job_folders, note_job_end
from commonage.engines.settings import EngineSettings
from commonage.files.safe_path import SafePath
from commonage.ports.engine import Engine
from commonage.ports.execs import ExecStream, Terminal

CLEAN_PAUSE_S = 600.0
_log = logging.getLogger(__name__)


R = TypeVar("R", bound=EngineRun)


class RunsEngine(Engine, ABC, Generic[R]):
    """Engine port methods that need only run folders, which lie in `folder`, and a run table.

    `shared`: the folder for files that other nodes see (`Runs`).
    """

    def __init__(
        self, site: str, name: str, folder: Path, settings: EngineSettings, shared: SafePath | None = None
    ) -> None:
        self._site = site
        self._table = RunTable[R]()
        self._keep_job_files_s = settings.keep_job_files_s
        self._retention = settings.keep_logs_s, settings.keep_logs_mib
        self._files = Runs(folder, shared)
        self._tasks = Tasks(name)
        self._in_thread, self._spawn, self._keep = self._tasks.in_thread, self._tasks.spawn, self._tasks.keep
        self._log_limit = LogLimit(self._table, settings.max_log_mib, self._in_thread)

    @property
    def site(self) -> str:
        return self._site

    @property
    @abstractmethod
    def _workspaces(self) -> SafePath:
        """The folder of all homes."""

    def loops(self) -> Sequence[Iterations]:
        return self._tasks.loops

    # --- starting ----------------------------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> None:
        run = self._table.runs.get(request.attempt_id)
        if run is None:
            self._files.folder(request.attempt_id)  # raises for an invalid id
            run = self._accept(request)
            # A task of its own: a caller that is cancelled must not leave something half written or unwatched.
            self._spawn(self._begin(run))
        await asyncio.shield(run.begun)

    @abstractmethod
    def _accept(self, request: StartRequest) -> R:
        """Check the request, choose its port, and put it into the table. Raises EngineFailure."""

    def _write(self, run: R) -> int | Phase | None:
        """Write the request to disk, in a thread. Raises EngineFailure.

        Returns its phase, or the pid of its process if an engine starts that here. None if it ran under an earlier
        server process, and was forgotten.
        """
        if self._files.is_forgotten(run.id):
            return None
        try:
            self._files.create(run.request, run.port)
        except OSError as error:
            self._files.remove(run.id)
            raise EngineFailure(f"its run folder cannot be written: {error}", retryable=True) from error
        return Phase.STARTING

    @abstractmethod
    async def _go_on(self, run: R, begun: int | Phase) -> None:
        """Continue with what `_write` has begun."""

    def _drop(self, run: R) -> None:
        self._table.runs.pop(run.id, None)

    async def _begin(self, run: R) -> None:
        try:
            begun = await self._in_thread(lambda: self._write(run))
        except Exception as error:  # any exception goes to those who wait for the start
            self._drop(run)
            run.begun.set_exception(error)
            run.begun.exception()  # marks it as retrieved: there may be no waiter left
            return
        if begun is None:
            self._drop(run)
        else:
            await self._go_on(run, begun)
        run.begun.set_result(None)

    # --- stopping and forgetting -------------------------------------------------------------------------------

    @abstractmethod
    async def _end(self, run: R) -> None:
        """End the attempt and wait until it ended. `kill_at` may become earlier while it waits."""

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
        if run is None:
            await self._in_thread(lambda: self._forget_unknown(attempt_id))
            return
        if run.status.phase is not Phase.ENDED:
            return
        await self._remove(run)
        await self._log_limit.cut(run)
        request = run.request
        await self._in_thread(lambda: note_job_end(self._workspaces, request.owner, request.workload_id))
        await self._in_thread(lambda: self._files.forget(attempt_id))
        self._table.runs.pop(attempt_id, None)

    def _forget_unknown(self, attempt_id: str) -> None:
        """One that was stopped before its start arrived has a folder. A late start finds it forgotten."""
        try:
            runner = self._files.folder(attempt_id).runner()
            if runner is not None and runner.is_forbidden:
                self._files.forget(attempt_id)
        except EngineFailure:  # not a valid id
            return
        except OSError as error:
            raise EngineFailure(f"the folder of {attempt_id} cannot be removed: {error}", retryable=True) from error

    async def _remove(self, run: R) -> None:
        """Remove what exists of it outside its run folder. Raises EngineFailure."""

    # --- housekeeping ------------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        """Limit logs, and remove leftovers, until the engine closes."""
        self._keep("limit logs", self._log_limit.keep)
        self._keep("clean up", self._keep_clean)

    async def _clear(self) -> None:
        """Remove what exists outside the run folders and is no longer needed. Raises EngineFailure."""

    async def _keep_clean(self, iterations: Iterations) -> None:
        while True:
            try:
                await self._clear()
                removed = await self._in_thread(partial(self._files.clear_old, time.time(), *self._retention))
                if removed:
                    _log.info("removed the logs of %d attempts of long ago", removed)
                before, live = time.time() - self._keep_job_files_s, {run.request.workload_id for run in self._table}
                removed = await self._in_thread(partial(clear_job_folders, self._workspaces, before, live))
                if removed:
                    _log.info("removed the folders of %d jobs of long ago", removed)
            except (EngineFailure, OSError) as error:
                _log.warning("cannot clean up: %s", error)
            with iterations.rest():
                await asyncio.sleep(CLEAN_PAUSE_S)

    # --- status, logs, exec ------------------------------------------------------------------------------------

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

    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> ExecStream:
        run = self._table.runs.get(attempt_id)
        if run is None or not run.is_running:
            raise not_running(attempt_id)
        return await self._exec(run, command, terminal)

    async def _exec(self, run: R, command: Sequence[str], terminal: Terminal | None) -> ExecStream:
        raise EngineFailure(f"no command can run in {run.id} on the site {self._site}")
