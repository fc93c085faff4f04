"""Starts the processes of an attempt and determines how they ended. Blocks: the engine calls it in threads.

Volumes are not mounted: the home has a link to each. The permissions of the server's account apply to them. Read-only
volumes and size limits are not enforced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.lifecycle import reason_of_exit
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import (
    Completed,
    ExitCodeLoss,
    ExitCodeLost,
    NodeRestarted,
    ProcessesRemain,
    Starting,
    StoppedBeforeStart,
)
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.domain.volumes import Mount, VolumeKind
from commonage.engines.process.environments import PythonEnvironment
from commonage.engines.process.groups.groups import Groups
from commonage.engines.process.processes import boot_id, open_process, spawn_shim
from commonage.engines.process.translate import LOOPBACK, ProcessContext, Program, enforced, program_of, url_of
from commonage.engines.process.warm.sessions import WarmSessions
from commonage.engines.rundir.node_report import node_name
from commonage.engines.rundir.programs import gang_slots
from commonage.engines.rundir.runs import Exit, RunFolder, RunnerProcess
from commonage.engines.rundir.unpacking import Unpacker, recorded_try
from commonage.engines.rundir.workspaces import FOLDER, link_volumes, make_workspace
from commonage.engines.settings import ProcessSettings
from commonage.files.safe_path import SafePath
from commonage.ports.devices import Devices, ShareAssignment


def link_request_volumes(mounts: Sequence[Mount], home: Path, tmp: Path) -> dict[str, str]:
    """Link all volumes in `home`; return their paths by name. Scratch is in `tmp`, and is removed with it.

    Raises EngineFailure for a missing folder, and for volumes that only containers can have.
    """
    places = {one.name: _place(one, tmp) for one in mounts}
    # Each attempt has its own scratch, but they all share a home.
    lasting = {one.name: places[one.name] for one in mounts if one.kind is VolumeKind.FOLDER}
    link_volumes(SafePath(home), lasting, os.geteuid(), os.getegid())
    return {name: str(home / FOLDER / name) if name in lasting else place for name, place in places.items()}


def _place(mount: Mount, tmp: Path) -> str:
    if mount.kind is VolumeKind.SCRATCH:
        folder = tmp / FOLDER / mount.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(folder)
    if mount.kind is VolumeKind.DOCKER:
        raise EngineFailure(f"the volume {mount.name} is Docker's, and this machine runs workloads as processes")
    folder = Path(os.path.normpath(mount.source))
    if mount.made:
        try:
            folder.parent.mkdir(mode=0o711, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise EngineFailure(f"the volume {mount.name} cannot be made: {error}", retryable=True) from error
    if not folder.is_dir():
        raise EngineFailure(f"the volume {mount.name} ({folder}) is not on this machine; tell the admin")
    return str(folder)


STOPPED_EARLY = StoppedBeforeStart()
_TERMINATED, _KILLED = 143, 137
_HALF_WRITTEN_S = 1.0


@dataclass(frozen=True, slots=True)
class ShimRunning:
    """Its shim lives: `pidfd` (the caller closes it) of `pid`, since `started_at`."""

    pid: int
    pidfd: int
    started_at: float


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The attempt has not been started yet, and may start."""


class Launcher:
    """Starts shims and reads their files. `shared` are the variables that every workload gets."""

    def __init__(
        self,
        workspaces: Path,
        groups: Groups,
        shared: Mapping[str, str],
        settings: ProcessSettings,
        devices: Devices | None = None,
    ) -> None:
        self._devices = devices
        self._workspaces = workspaces
        self._groups = groups
        self._shared = shared
        self._node = node_name(settings)
        self._unpacker = Unpacker(settings.bundle_max_mib)
        self._warm = WarmSessions(shared) if settings.warm_sessions else None

    def warm_up(self, programs: Path) -> Future[frozenset[str] | None] | None:
        """Start a warm parent for sessions with these programs.

        Returns what to wait for; None if there is nothing.
        """
        return self._warm.prepare(programs) if self._warm is not None else None

    def close(self) -> None:
        self._unpacker.close()
        if self._warm is not None:
            self._warm.close()

    async def unpack(self, request: StartRequest, folder: RunFolder) -> None:
        """Put the files that were sent along (there must be some) into the folder of the job.

        Raises EngineFailure.
        """
        bundle = Path(request.bundle_path or "")

        def put() -> None:
            workspace = make_workspace(SafePath(self._workspaces), request.owner).path
            try:
                with recorded_try(folder.path):
                    self._unpacker.unpack(bundle, _job_folder(workspace, request))
            except OSError as error:
                raise EngineFailure(f"its files cannot be unpacked: {error}", retryable=True) from error

        await self._unpacker.run(request.owner, put)

    def launch(self, request: StartRequest, folder: RunFolder, port: int | None, python: PythonEnvironment) -> int:
        """Start a shim; return its pid. Raises EngineFailure; then nothing was started."""
        try:
            return self._launch(request, folder, port, python)
        except OSError as error:
            raise EngineFailure(f"it cannot be started: {error}", retryable=True) from error

    def _launch(self, request: StartRequest, folder: RunFolder, port: int | None, python: PythonEnvironment) -> int:
        context = self._context(request, folder, port, python)
        program = program_of(request, context, self._shared)
        groups = self._groups.make(request.attempt_id, request.allocation.cpus_milli, request.allocation.memory_mib)
        try:
            program = self._enforce(request, program, groups)
            pid = self._warm and self._warm.spawn(python.programs, folder.path, groups, program, context.cwd)
            return pid or spawn_shim(folder.path, groups, program.command, program.variables, context.cwd)
        except BaseException:
            self._release(request)
            self._groups.remove(request.attempt_id)
            raise

    def _context(
        self, request: StartRequest, folder: RunFolder, port: int | None, python: PythonEnvironment
    ) -> ProcessContext:
        workspace = make_workspace(SafePath(self._workspaces), request.owner).path
        cwd = _job_folder(workspace, request) if request.bundle_path is not None else workspace
        volumes = link_request_volumes(request.mounts, workspace, folder.tmp)
        own, shared = (None, port) if request.gang else (port, None)
        of_python = (python.programs, python.root)
        context = ProcessContext(workspace, cwd, folder.tmp, *of_python, own, volumes, python.kernel, shared)
        if request.gang:  # all members run on this node
            line = f"{LOOPBACK} slots={len(request.gang) * gang_slots(request)}\n"
            context.host_file.write_text(line, encoding="ascii")
        return context

    def exec_program(
        self, request: StartRequest, folder: RunFolder, port: int | None, python: PythonEnvironment
    ) -> tuple[Program, Path]:
        """The program of a running attempt, and its working folder, for its exec commands. Raises EngineFailure."""
        try:
            context = self._context(request, folder, port, python)
        except OSError as error:
            raise EngineFailure(
                f"the folders of {request.attempt_id} cannot be used: {error}", retryable=True
            ) from error
        program = program_of(request, context, self._shared)
        return self._enforce(request, program, self._groups.joins(request.attempt_id)), context.cwd

    def settle(self, live: Collection[str]) -> None:
        """After a server start: release GPU shares of all other attempts. Raises EngineFailure."""
        if self._devices is None:
            return
        try:
            self._devices.settle(live)
        except OSError as error:
            raise EngineFailure(f"what is held of the GPUs cannot be read: {error}") from error

    def _enforce(self, request: StartRequest, program: Program, groups: Collection[str]) -> Program:
        """Enforce its shares before its command runs: its groups exist, and are still empty."""
        if self._devices is None or not request.allocation.shares:
            return program
        folders = tuple(str(Path(path).parent) for path in groups)
        return enforced(
            program, self._devices.enforce(ShareAssignment(request.attempt_id, request.allocation.shares, folders))
        )

    def _release(self, request: StartRequest) -> None:
        """Call it when it has no process left, and before its groups are removed: the driver counts by them."""
        if self._devices is not None and request.allocation.shares:
            self._devices.release(request.attempt_id)

    def find(self, request: StartRequest, folder: RunFolder, over_memory: bool) -> ShimRunning | NotStarted | Status:
        """Return the state of an attempt: its living shim, its end after cleanup, or not yet run.

        `over_memory`: the server ended it because it used too much memory.
        """
        runner = self._runner(folder)
        if runner is None:
            return NotStarted()
        if runner.is_forbidden:
            return self._never_ran(request, folder, runner)
        if runner.boot_id == boot_id():
            pidfd = open_process(runner.pid, runner.began)
            if pidfd is not None:
                return ShimRunning(runner.pid, pidfd, runner.at)
        return self._ended(request, folder, runner, over_memory)

    def _runner(self, folder: RunFolder) -> RunnerProcess | None:
        """The recorded process of the attempt; None if it has none.

        Waits up to _HALF_WRITTEN_S for a half-written record, which then counts as that of a dead process.
        """
        deadline = time.monotonic() + _HALF_WRITTEN_S
        while True:
            runner = folder.runner()
            if runner is not None or not (folder.path / "pid").exists():
                return runner
            if time.monotonic() > deadline:
                return RunnerProcess(-1, 0, "", time.time())
            time.sleep(0.01)

    def _never_ran(self, request: StartRequest, folder: RunFolder, runner: RunnerProcess) -> Status:
        folder.tidy()
        # A shim that started too late may already have its groups.
        self._release(request)
        self._groups.remove(request.attempt_id)
        end = folder.exit() or Exit(_TERMINATED, STOPPED_EARLY, runner.at)
        return Status(request.attempt_id, Phase.ENDED, runner.at, self._node, end.reason, exit_code=end.code)

    def _ended(self, request: StartRequest, folder: RunFolder, runner: RunnerProcess, over_memory: bool) -> Status:
        """Its shim is gone: end its remaining processes, and record how it ended."""
        was_oom = over_memory or self._groups.was_oom(request.attempt_id)
        written = folder.exit()
        end = written or self._guess(folder, runner, was_oom)
        if was_oom and end.code != 0:
            end = replace(end, oom=True)
        if request.allocation.shares and self._devices is not None:
            if self._groups.pids(request.attempt_id):
                self._groups.kill(request.attempt_id)
            self._release(request)
        used = self._groups.last_use(request.attempt_id)  # its groups take it along
        if not self._groups.remove(request.attempt_id):
            if not self._groups.kill(request.attempt_id):
                end = replace(end, reason=ProcessesRemain(cause=_cause_of(end)))
            self._groups.remove(request.attempt_id)
        if end != written:
            folder.write_exit(end)  # the kernel's account of it goes with its groups
        folder.tidy()
        return Status(
            request.attempt_id, Phase.ENDED, end.at, self._node, end.reason,
            exit_code=end.code, oom=end.oom, started_at=runner.at, used=used,
        )  # fmt: skip

    def _guess(self, folder: RunFolder, runner: RunnerProcess, was_oom: bool) -> Exit:
        now = time.time()
        if runner.pid < 0:
            return Exit(None, ExitCodeLost(why=ExitCodeLoss.CLAIM_UNREADABLE), runner.at)
        if folder.has_empty_exit():
            return Exit(None, ExitCodeLost(why=ExitCodeLoss.NOT_WRITTEN), now)
        if runner.boot_id != boot_id():
            return Exit(None, NodeRestarted(node=self._node), now)
        if was_oom:
            return Exit(_KILLED, None, now)
        return Exit(None, ExitCodeLost(why=ExitCodeLoss.SHIM_KILLED), now)

    def running(self, request: StartRequest, port: int | None, started_at: float | None = None) -> Status:
        """Status of a running attempt, by default since now."""
        now = time.time()
        url = url_of(port if request.wants_port else None)
        return Status(request.attempt_id, Phase.RUNNING, now, self._node, url=url, started_at=started_at or now)

    def starting(self, request: StartRequest, reason: Reason | None = None, progress: float | None = None) -> Status:
        return Status(
            request.attempt_id, Phase.STARTING, time.time(), self._node, reason or Starting(node=self._node), progress
        )


def _cause_of(end: Exit) -> Reason:
    if end.reason is not None:
        return end.reason
    return reason_of_exit(end.code, end.oom) if end.code else Completed()


def _job_folder(workspace: Path, request: StartRequest) -> Path:
    return workspace / "jobs" / request.workload_id
