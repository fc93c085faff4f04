"""Determines the status of an attempt from its run folder, its control folder and its engine.

Used by the engine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Isolation
from commonage.domain.reasons.attempts import InterposerNotLoaded, StoppedBeforeStart
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.engines.containers.attempt_backend import (
    Absent,
    AttemptBackend,
    ContainerState,
    Ended,
    Run,
    Running,
    Waiting,
)
from commonage.engines.containers.files.control_folder import StartDecision
from commonage.engines.rundir.runs import Exit, RunFolder
from commonage.engines.rundir.tasks import InThread
from commonage.files import preload

STOPPED_EARLY = StoppedBeforeStart()
TERMINATED = 143
INTERPOSER_NOT_LOADED = InterposerNotLoaded(path=preload.LIBRARY_INSIDE)
NOT_LOADED = frozenset({1, 96, 127})
"""Exit codes before the command: 96 is the entry's (entry.sh), the others are glibc's, of a library that does not fit.
"""


def is_interposed(request: StartRequest) -> bool:
    """True if an interposer must be loaded in its container."""
    return any(share.isolation is Isolation.PRELOAD and not share.whole for share in request.allocation.shares)


@dataclass(frozen=True, slots=True)
class Unstarted:
    """The attempt has not been started yet, and may start."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nothing new is known now."""


class StatusReader:
    def __init__(self, container_client: AttemptBackend, in_thread: InThread) -> None:
        self._container_client = container_client
        self._in_thread = in_thread

    async def inspect(self, run: Run) -> Status | Unstarted | Unclear:
        """Return its status. Raises EngineFailure while that cannot be seen, or the disk fails."""
        try:
            return await self._read(run, await self._container_client.inspect(run))
        except OSError as error:
            raise EngineFailure(f"its run folder cannot be read or written: {error}", retryable=True) from error

    async def _read(self, run: Run, seen: ContainerState) -> Status | Unstarted | Unclear:
        written = await self._written(run)
        if written is None:
            if isinstance(seen, Running):
                return self._running(run, seen)
            if isinstance(seen, Ended):
                end, now = await seen.end(), time.time()
                ended_at = _within(end.at, _began(run, seen, now) or run.request.allocation.at, now)
                written = await self._write(run, replace(end, at=ended_at))
            else:
                unread = await self._of_what_did_not_run(run, seen)
                if not isinstance(unread, Exit):
                    return unread
                written = await self._write(run, unread)
        return self._ended(run, written, _began(run, seen, written.at))

    async def _written(self, run: Run) -> Exit | None:
        written = await self._in_thread(run.folder.exit)
        if written is None:
            early = await self._in_thread(run.folder.runner)
            if early is not None:
                written = await self._write(run, Exit(TERMINATED, STOPPED_EARLY, early.at))
        return written

    async def _of_what_did_not_run(self, run: Run, seen: ContainerState) -> Exit | Status | Unstarted | Unclear:
        decision = await self._in_thread(run.control_folder.decision)
        if decision is StartDecision.FORBIDDEN:
            return Exit(TERMINATED, STOPPED_EARLY, time.time())
        if isinstance(seen, Waiting):
            return self._waiting(run, seen)
        if decision is StartDecision.UNDECIDED:
            return Unstarted()
        # Otherwise it was started a moment ago, and that is not visible yet.
        return Exit(None, seen.reason, time.time()) if isinstance(seen, Absent) else Unclear()

    def _waiting(self, run: Run, seen: Waiting) -> Status:
        node = self._container_client.node_of(run.request)
        return Status(run.id, Phase.STARTING, time.time(), node, seen.reason, seen.progress)

    def _running(self, run: Run, seen: Running) -> Status:
        now = time.time()
        node = self._container_client.node_of(run.request)
        return Status(run.id, Phase.RUNNING, now, node, url=seen.url, started_at=_began(run, seen, now) or now)

    def _ended(self, run: Run, end: Exit, started_at: float | None) -> Status:
        return Status(
            run.id, Phase.ENDED, end.at, self._container_client.node_of(run.request), end.reason,
            exit_code=end.code, oom=end.oom, started_at=started_at,
        )  # fmt: skip

    async def _write(self, run: Run, end: Exit) -> Exit:
        await self._in_thread(lambda: write_end(run.folder, end))
        await self._container_client.release(run)
        return end


def write_end(folder: RunFolder, end: Exit) -> None:
    """Write how it ended; on a full disk into the space reserved for that. Raises OSError."""
    try:
        folder.write_exit(end)
    except OSError:
        folder.release_reserve()
        folder.write_exit(end)
    folder.tidy()


def _began(run: Run, seen: ContainerState, latest: float) -> float | None:
    """Its start time; None if it did not start. The first value stays, and no start precedes the allocation."""
    reported = seen.started_at if isinstance(seen, Running | Ended) else None
    if reported is None or run.status.started_at is not None:
        return run.status.started_at
    return _within(reported, run.request.allocation.at, latest)


def _within(moment: float, earliest: float, latest: float) -> float:
    """Clamp a time that comes from another clock, or from files that its owner can write to."""
    return min(max(moment, earliest), latest)
