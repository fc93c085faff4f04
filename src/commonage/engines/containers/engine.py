"""Starting, stopping and status for all engines whose attempts are containers.

State that must survive the server and the daemons is in the run folders; a container's state is copied into them once
it ended. Base class of engines, which provide a `AttemptBackend`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from commonage.domain.errors import EngineFailure, start_failure
from commonage.domain.images import EnvironmentStatus
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import Starting
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.engines.containers.attempt_backend import AttemptBackend, NodeGone, Run, Unreachable
from commonage.engines.containers.daemon.connection import Connection
from commonage.engines.containers.daemon.images import Images, Logins
from commonage.engines.containers.daemon.networks import Relays
from commonage.engines.containers.files.prepare import check
from commonage.engines.containers.lifecycle import StartLimiter, end_run, launch_with_retries
from commonage.engines.containers.status_reader import StatusReader, Unclear, Unstarted, write_end
from commonage.engines.rundir.runs import Exit
from commonage.engines.rundir.runs_engine import RunsEngine
from commonage.engines.rundir.unpacking import Unpacker
from commonage.engines.settings import ContainerSettings
from commonage.files.safe_path import SafePath
from commonage.link.forwarding import MAX_PER_PEER

RETRY_S = 2.0
"""Seconds before looking again at what could not be seen."""
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ContainerEngine(RunsEngine[Run]):
    """Engine port methods that need no daemon's API. `folder` holds its run folders.

    `shared`: the folder for files that other nodes see.
    """

    _max_relayed = MAX_PER_PEER
    """Limit of connections to the relays from one address."""

    _container_client: AttemptBackend
    _status_reader: StatusReader
    _installation: str

    def __init__(
        self,
        site: str,
        name: str,
        folder: Path,
        settings: ContainerSettings,
        client: Connection,
        shared: SafePath | None = None,
    ) -> None:
        super().__init__(site, name, folder / "runs", settings, shared)
        self._folder = folder
        self._connection = client
        self._start_limiter = StartLimiter(self._spawn)
        self._unpacker = Unpacker(settings.bundle_max_mib)
        self._images = Images(client, site, settings.pull, Logins(settings.account, settings.get_pull_token))
        self._relays = Relays(settings.reaches, settings.gateway_port, self._max_relayed)

    # --- for subclasses --------------------------------------------------------------------------------------

    async def _load_requests(self) -> Sequence[tuple[StartRequest, int | None]]:
        """Return the start requests on disk, with their ports; reads the installation's name. Raises EngineFailure."""
        try:
            await self._in_thread(self._files.open)
            self._installation = await self._in_thread(lambda: installation_of(self._folder))
            return await self._in_thread(self._files.load)
        except OSError as error:
            raise EngineFailure(f"the folder {self._folder} cannot be used: {error}") from error

    async def _recover(
        self, requests: Sequence[tuple[StartRequest, int | None]], container_client: AttemptBackend
    ) -> None:
        """Find all attempts that run, ended since, or were written to disk but not started."""
        self._container_client = container_client
        self._status_reader = StatusReader(container_client, self._in_thread)
        for request, port in requests:
            run = self._note(request)
            run.port = port
            run.begun.set_result(None)
        await self._settle_all()

    async def close(self) -> None:
        """Release everything. Running attempts continue, and are found again."""
        await asyncio.gather(*(run.begun for run in self._table), return_exceptions=True)
        await self._tasks.cancel()
        await self._before_disconnect()
        await self._images.close()
        self._relays.close()
        await self._connection.close()
        self._unpacker.close()
        self._tasks.close()

    async def _before_disconnect(self) -> None:
        """The last calls to the daemon, when no task runs any more."""

    def _has_runs_of(self, tenant: str) -> bool:
        return any(run.request.tenant == tenant for run in self._table)

    # --- the port: starting -------------------------------------------------------------------------------

    def _accept(self, request: StartRequest) -> Run:
        check(request)
        port = self._container_client.port_for(request, self._ports_at(self._container_client.node_of(request)))
        run = self._note(request)
        run.port = port
        return run

    def _note(self, request: StartRequest) -> Run:
        run = Run(request, self._files.folder(request.attempt_id), self._starting(request))
        self._table.runs[request.attempt_id] = run
        return run

    def _ports_at(self, node: str) -> set[int]:
        return {
            run.port
            for run in self._table
            if run.port is not None and self._container_client.node_of(run.request) == node
        }

    def _starting(self, request: StartRequest, reason: Reason | None = None, progress: float | None = None) -> Status:
        node = self._container_client.node_of(request)
        return Status(request.attempt_id, Phase.STARTING, time.time(), node, reason or Starting(node=node), progress)

    async def _go_on(self, run: Run, begun: int | Phase) -> None:
        self._table.tell(run, self._starting(run.request))
        self._launch(run)

    def _launch(self, run: Run) -> None:
        if not run.is_launching and run.ending is None:
            run.launching = self._spawn(self._launch_in_background(run))

    async def _launch_in_background(self, run: Run) -> None:
        def on_progress(reason: Reason, progress: float | None) -> None:
            self._table.tell(run, self._starting(run.request, reason, progress))

        try:
            if await self._tasks.until_disk_works(run.folder.runner) is None:
                await launch_with_retries(run, self._container_client, on_progress)
        except Unreachable as error:
            on_progress(error.waiting, None)
            self._settle_soon_again(run)
            return
        except EngineFailure as error:
            # A temporary error is not the program's failure: it may run elsewhere, or later.
            _log.warning("cannot start %s: %s", run.id, error)
            code = None if isinstance(error, NodeGone) or error.is_retryable else 1
            why = start_failure(error)
            async with run.status_lock:  # a look between the claim and the end would take it for a stop
                await self._tasks.until_disk_works(partial(_write_failure, run, Exit(code, why, time.time())))
            await self._container_client.release(run)
        await self._settle(run)

    # --- changes --------------------------------------------------------------------------------------------

    async def _settle(self, run: Run) -> None:
        """Look at its status and report it; start it if it was not started."""
        async with run.status_lock:
            if run.status.phase is Phase.ENDED:
                return
            try:
                found = await self._status_reader.inspect(run)
            except EngineFailure as error:  # the daemon is unreachable, or the disk is full
                if error.message != run.last_error:
                    _log.warning("cannot look what became of %s, will try again: %s", run.id, error)
                run.last_error = error.message
                self._settle_soon_again(run)
                return
            run.last_error = ""
            if isinstance(found, Unstarted):
                self._launch(run)
            elif isinstance(found, Unclear):
                self._settle_soon_again(run)
            elif _has_changed(run.status, found):
                self._table.tell(run, found)

    def _settle_soon_again(self, run: Run) -> None:
        """Look again soon, because no event may report that its status can be seen."""
        if run.again is None:
            run.again = self._spawn(self._settle_after_pause(run))

    async def _settle_after_pause(self, run: Run) -> None:
        await asyncio.sleep(RETRY_S)
        run.again = None
        await self._settle(run)

    async def _settle_all(self) -> None:
        await asyncio.gather(*(self._settle(run) for run in self._table))

    # --- the port: stopping and forgetting ----------------------------------------------------------------

    async def _end(self, run: Run) -> None:
        try:
            await asyncio.shield(run.begun)
        except EngineFailure:  # it was not written to disk, so it is unknown
            await self._tasks.until_disk_works(lambda: self._stop_early(run.id))
            return
        # An attempt that was seen running has run, whatever it did to its control folder since.
        if not run.is_running and await self._tasks.until_disk_works(run.control_folder.forbid_start):
            if run.launching is not None:
                run.launching.cancel()
            await self._tasks.until_disk_works(run.folder.forbid_start)
            await self._settle(run)
            return
        await end_run(run, self._container_client, self._settle)

    async def _remove(self, run: Run) -> None:
        if run.launching is not None:  # its last request may still create the container
            await asyncio.wait({run.launching})
        await self._container_client.remove(run)

    # --- the port: environments ----------------------------------------------------------------------------

    async def environments(self) -> Sequence[EnvironmentStatus]:
        return self._images.statuses()


def _has_changed(before: Status, after: Status) -> bool:
    """True if the statuses differ in more than the time of observation."""
    return before.phase is not after.phase or (before.reason, before.progress, before.url) != (
        after.reason, after.progress, after.url
    )  # fmt: skip


def _write_failure(run: Run, end: Exit) -> None:
    """Record the end of an accepted attempt that cannot be started, unless its command runs after all."""
    if run.control_folder.forbid_start():
        write_end(run.folder, end)


def installation_of(folder: Path) -> str:
    """Name by which this data folder distinguishes its containers from others; created once. Raises OSError."""
    path = folder / "installation"
    with suppress(FileNotFoundError):
        return path.read_text(encoding="ascii").strip()
    temporary = folder / "installation.new"
    temporary.write_text(os.urandom(8).hex(), encoding="ascii")
    temporary.rename(path)
    return path.read_text(encoding="ascii").strip()
