"""The process engine: the engine port over plain processes of this node.

One attempt is one shim (shim.sh) with its command. A pidfd watches the shim, whether it is our child or was found again
after a restart, so that thousands cost nothing while they run. All state that must survive the server is in the run
folders. Created by bootstrap.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import shutil
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

from commonage.domain.errors import EngineFailure, start_failure
from commonage.domain.images import Environment, EnvironmentStatus
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import UnpackingFiles
from commonage.domain.reasons.engines import NotIsolated
from commonage.domain.statuses import Capabilities, Measurement, Phase, ProcessOwner, StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.process.environments import Environments, PythonEnvironment
from commonage.engines.process.exec import Execs
from commonage.engines.process.groups.cgroups import find_cgroups
from commonage.engines.process.groups.groups import Groups
from commonage.engines.process.groups.marked import MarkedProcesses, owners_of
from commonage.engines.process.launcher import Launcher, NotStarted, ShimRunning
from commonage.engines.process.node import PortRange, report_node
from commonage.engines.process.processes import leave_signals_alone, raise_file_limit, reap
from commonage.engines.process.run import Run, end_run, enforce_memory
from commonage.engines.process.translate import shared_variables
from commonage.engines.process.uv import read_pip_settings, uv_environment
from commonage.engines.rundir.node_report import node_name
from commonage.engines.rundir.node_usage import NodeUsageReader
from commonage.engines.rundir.runs import Exit
from commonage.engines.rundir.runs_engine import RunsEngine
from commonage.engines.rundir.tasks import retry_start
from commonage.engines.rundir.unpacking import check_bundle_exists
from commonage.engines.settings import ProcessSettings
from commonage.files.safe_path import SafePath
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.devices import Devices
from commonage.ports.execs import ExecStream, Terminal

_log = logging.getLogger(__name__)
_RETRY_S = 1.0
_WAIT_FOR_WARMTH_S = 20.0
_UNPACK_PAUSES_S = (1.0, 4.0, 15.0)


class ProcessEngine(RunsEngine[Run]):
    """The engine of a site that is this node.

    All its files lie under `data` (runs, environments, workspaces).
    """

    def __init__(
        self, site: str, data: Path, *, devices: Devices | None = None, settings: ProcessSettings | None = None
    ) -> None:
        self._settings = settings or ProcessSettings()
        super().__init__(site, "process", data.absolute() / "runs", self._settings)
        self._data = data.absolute()
        self._devices = devices
        self._usage = NodeUsageReader()
        first, last = self._settings.first_port, self._settings.last_port
        self._ports = PortRange(first, last, start=random.randint(first, last))  # noqa: S311 - not a secret
        on_progress = uv_environment(os.environ, read_pip_settings(os.environ))
        self._environments = Environments(self._data / "environments", site, on_progress)
        self._groups: Groups = self._find_groups()
        shared = {"SHELL": shutil.which("bash") or "/bin/sh", **shared_variables(os.environ)}
        self._launcher = Launcher(self._data / "workspaces", self._groups, shared, self._settings, devices)
        self._execs = Execs(self._table, self._groups, self._tasks, self._launcher, self._environments)

    def _find_groups(self) -> Groups:
        key = hashlib.sha256(str(self._data).encode()).hexdigest()[:12]
        if not self._settings.cgroups:
            return MarkedProcesses()
        quota = self._settings.cpu_hold == "quota"
        return find_cgroups(key, self._settings.processes_max, cpu_quota=quota) or MarkedProcesses()

    # --- the port: capabilities ------------------------------------------------------------------------------

    @property
    def _workspaces(self) -> SafePath:
        return SafePath(self._data) / "workspaces"

    def capabilities(self) -> Capabilities:
        return Capabilities(
            "process",
            limits_memory=self._groups.limits_memory,
            limits_cpu=self._groups.limits_cpu,
            unbounded_on=(node_name(self._settings),),
            notes=(NotIsolated(), *self._groups.notes),
        )

    async def nodes(self) -> Sequence[NodeReport]:
        return [await self._in_thread(lambda: report_node(self._settings, self._data, self._devices, self._usage))]

    # --- the port: opening and closing --------------------------------------------------------------------

    async def open(self) -> None:
        raise_file_limit()
        leave_signals_alone()
        try:
            await self._in_thread(self._files.open)
            await self._in_thread(self._environments.open)
            found = await self._in_thread(self._files.load)
        except OSError as error:
            raise EngineFailure(f"the folder {self._data} cannot be used: {error}") from error
        for request, port in found:
            run = self._note(request, port)
            run.begun.set_result(None)
            if port is not None:
                self._ports.hold(port, request.attempt_id)
        await asyncio.gather(*(self._settle(run) for run in self._table))
        live = [run.id for run in self._table.live()]
        await self._in_thread(lambda: self._launcher.settle(live))
        await self._in_thread(self._execs.end_left_over)
        await self._in_thread(self._warm_up_all)
        self._keep("watch memory", partial(enforce_memory, self._table, self._groups, self._in_thread))
        self._keep_house()

    def _warm_up_all(self) -> None:
        for programs in self._environments.used_by_sessions(time.time()):
            self._launcher.warm_up(programs)

    async def close(self) -> None:
        await asyncio.gather(*(run.begun for run in self._table), return_exceptions=True)
        await self._execs.close()
        await self._tasks.cancel()
        await self._environments.close()
        for run in self._table:
            self._unwatch(run)
        self._groups.close()
        await self._in_thread(self._launcher.close)
        self._tasks.close()

    # --- the port: starting -------------------------------------------------------------------------------

    async def _clear(self) -> None:
        try:
            in_use = [run.request.environment for run in self._table]
            removed = await self._in_thread(partial(self._environments.remove_replaced, time.time(), in_use))
        except OSError as error:
            raise EngineFailure(f"an environment that was replaced cannot be removed: {error}") from error
        for folder in removed:
            _log.info("removed %s, which was replaced and not used for a month", folder)

    def _accept(self, request: StartRequest) -> Run:
        return self._note(request, self._port_for(request))

    def _port_for(self, request: StartRequest) -> int | None:
        """The port that it listens on; for a member of a gang that of the first one, the same for all."""
        shared = next((one.port for one in self._others(request)), None) if request.gang else None
        if shared is not None:
            self._ports.hold(shared, request.attempt_id)
            return shared
        if request.gang:
            return self._ports.take(request.attempt_id)
        return self._ports.take(request.attempt_id, request.port) if request.wants_port else None

    def _others(self, request: StartRequest) -> list[Run]:
        """The other members of its gang that have not ended."""
        found = (self._table.runs.get(one) for one in request.gang if one != request.attempt_id)
        return [run for run in found if run is not None and run.status.phase is not Phase.ENDED]

    def _give_port_back(self, run: Run) -> None:
        if run.port is not None:
            self._ports.give_back(run.port, run.id)

    def _note(self, request: StartRequest, port: int | None) -> Run:
        folder = self._files.folder(request.attempt_id)
        run = Run(request, folder, self._launcher.starting(request), port)
        self._table.runs[request.attempt_id] = run
        return run

    def _drop(self, run: Run) -> None:
        super()._drop(run)
        self._give_port_back(run)

    async def _go_on(self, run: Run, begun: int | Phase) -> None:
        if isinstance(begun, int):
            self._watch_started(run, begun)
        elif begun is Phase.ENDED:
            await self._settle(run)
        else:
            self._table.tell(run, self._launcher.starting(run.request))
            run.preparing = self._spawn(self._prepare_and_launch(run))

    def _write(self, run: Run) -> int | Phase | None:
        """Record the attempt; if its environment is ready, launch it and return the shim's pid.

        STARTING if its environment must be created or warmed up first, or its files unpacked; ENDED if it was stopped
        before; None if it is forgotten.
        """
        request = run.request
        if self._files.is_forgotten(run.id):
            return None
        try:
            python = self._environments.ready(request.environment)
            # A list of requirements with hashes is long, and only kept while it may be needed.
            self._files.create(python.remembered(request) if python else request, run.port)
            if run.folder.runner() is not None:
                return Phase.ENDED
            check_bundle_exists(request.bundle_path)
            if python is None or request.bundle_path is not None or self._warm_up(request, python) is not None:
                return Phase.STARTING
            return self._launcher.launch(request, run.folder, run.port, python)
        except OSError as error:
            self._files.remove(run.id)
            raise EngineFailure(f"its run folder cannot be written: {error}", retryable=True) from error
        except EngineFailure:
            self._files.remove(run.id)
            raise

    async def _prepare_and_launch(self, run: Run) -> None:
        """The slow path: create the environment, reporting progress, unpack the files, then start."""

        def on_progress(reason: Reason, progress: float | None) -> None:
            self._table.tell(run, self._launcher.starting(run.request, reason, progress))

        try:
            python = await self._environments.ensure(run.request.environment, on_progress)
            await self._wait_for_warm_parent(run.request, python)
            await self._unpack(run, on_progress)
            # Shielded: a stop cancels this task, and must not interrupt a launch.
            await asyncio.shield(self._spawn(self._launch(run, python)))
        except EngineFailure as error:
            await self._fail(run, start_failure(error))

    def _warm_up(self, request: StartRequest, python: PythonEnvironment) -> Future[frozenset[str] | None] | None:
        """For a session, start a warm parent; return the future to wait for before the launch, if any."""
        if request.kind is not Kind.SESSION:
            return None
        self._environments.note_session(python)
        return self._launcher.warm_up(python.programs)

    async def _wait_for_warm_parent(self, request: StartRequest, python: PythonEnvironment) -> None:
        coming = await self._in_thread(lambda: self._warm_up(request, python))
        if coming is not None:
            await asyncio.wait([asyncio.wrap_future(coming)], timeout=_WAIT_FOR_WARMTH_S)

    async def _unpack(self, run: Run, on_progress: OnProgress) -> None:
        """Unpack the files that were sent along; retry for a while if the disk is full or fails."""
        if run.request.bundle_path is None:
            return
        on_progress(UnpackingFiles(), None)
        await retry_start(lambda: self._launcher.unpack(run.request, run.folder), _UNPACK_PAUSES_S, on_progress)

    async def _launch(self, run: Run, python: PythonEnvironment) -> None:
        pid = await self._in_thread(lambda: self._launcher.launch(run.request, run.folder, run.port, python))
        self._watch_started(run, pid)

    async def _fail(self, run: Run, why: Reason) -> None:
        """Record the end of an accepted attempt that cannot be started, with the reason."""

        def write() -> None:
            run.folder.write_exit(Exit(1, why, time.time()))
            run.folder.forbid_start()

        await self._in_thread(write)
        await self._settle(run)

    def _watch_started(self, run: Run, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # a child of a warm parent that ended meanwhile, and so has the session
            self._spawn(self._settle(run))
            return
        run.pid = pid
        self._watch_shim(run, pidfd)
        self._table.tell(run, self._launcher.running(run.request, run.port))

    # --- ends ------------------------------------------------------------------------------------------------

    def _watch_shim(self, run: Run, pidfd: int) -> None:
        run.pidfd = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._shim_ended, run)

    def _unwatch(self, run: Run) -> None:
        if run.pidfd is not None:
            asyncio.get_running_loop().remove_reader(run.pidfd)
            os.close(run.pidfd)
            run.pidfd = None

    def _shim_ended(self, run: Run) -> None:
        self._unwatch(run)
        if run.pid is not None:
            reap(run.pid)
            run.pid = None
        self._spawn(self._settle(run))

    async def _settle(self, run: Run) -> None:
        """Determine its state: watch a living shim (perhaps of an earlier server process), or record its end."""
        while True:
            try:
                found = await self._in_thread(partial(self._launcher.find, run.request, run.folder, run.over_memory))
                break
            except OSError as error:  # a full or failing disk: the state does not change meanwhile
                _log.error("cannot look what became of %s, will look again: %s", run.id, error)
                await asyncio.sleep(_RETRY_S)
        if isinstance(found, ShimRunning):
            run.pid = found.pid
            self._watch_shim(run, found.pidfd)
            self._table.tell(run, self._launcher.running(run.request, run.port, found.started_at))
        elif isinstance(found, NotStarted):
            run.preparing = self._spawn(self._prepare_and_launch(run))
        elif run.status.phase is not Phase.ENDED:
            self._give_port_back(run)
            self._table.tell(run, found)

    # --- the port: stopping -------------------------------------------------------------------------------

    async def _end(self, run: Run) -> None:
        with suppress(EngineFailure):
            await asyncio.shield(run.begun)
        if await self._in_thread(run.folder.forbid_start):
            if run.preparing is not None:
                run.preparing.cancel()
            if run.pidfd is None:
                await self._settle(run)
            return
        await end_run(run, self._groups, self._in_thread)

    # --- the port: usage and exec ----------------------------------------------------------------------------

    async def _exec(self, run: Run, command: Sequence[str], terminal: Terminal | None) -> ExecStream:
        """Run a command in the attempt's context, as a child of the server."""
        return await self._execs.begin(run, command, terminal)

    async def measure(self) -> Sequence[Measurement]:
        running = [run.id for run in self._table if run.is_running]
        return await self._in_thread(lambda: [found for one in running if (found := self._measure(one))])

    def _measure(self, attempt_id: str) -> Measurement | None:
        use = self._groups.use(attempt_id)
        return Measurement(attempt_id, use.cpu_s, use.memory_mib, use.pids) if use else None

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        attempts = [run.id for run in self._table]
        return await self._in_thread(lambda: owners_of(pids, self._groups, attempts))

    # --- the port: environments ---------------------------------------------------------------------------

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        python = await self._environments.ensure(environment, on_progress)
        if Kind.SESSION in environment.kinds:
            await self._in_thread(lambda: self._launcher.warm_up(python.programs))

    async def environments(self) -> Sequence[EnvironmentStatus]:
        return self._environments.statuses()
