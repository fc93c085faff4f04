"""Looking what became of an attempt: what is written down, what its box and what the daemon say. Used by the engine."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from commonage.domain.errors import EngineFailure
from commonage.domain.sightings import Sighting
from commonage.engines.common.board import InThread
from commonage.engines.common.runs import Exit
from commonage.engines.containers.board import Run
from commonage.engines.containers.box import Claim
from commonage.engines.containers.kernel import booted_at
from commonage.engines.docker.client import Client, Json
from commonage.engines.docker.daemon import Daemon
from commonage.engines.docker.launcher import Launcher, is_ours
from commonage.engines.docker.sightings import (
    STOPPED_EARLY,
    TERMINATED,
    Circumstances,
    end_of,
    ended,
    has_ended,
    instant,
    lives,
    may_be_oom_yet,
    running,
)
from commonage.engines.docker.translate import container_name

_OOM_NEWS_S = 0.3
# A program that ends so soon after a signal from outside was ended by it, whatever its exit code says.
_SIGNAL_TELLS_S = 60.0


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Nobody had it started yet, and nobody was told not to."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing new can be said of it now."""


class Looker:
    """Looks, and writes ends down."""

    def __init__(self, client: Client, daemon: Daemon, launcher: Launcher, in_thread: InThread, installation: str):
        self._client = client
        self._daemon = daemon
        self._launcher = launcher
        self._in_thread = in_thread
        self._installation = installation

    async def look(self, run: Run) -> Sighting | Unstarted | Gone:
        """What became of it. Raises EngineFailure while the daemon is away or the disk fails."""
        found = await self._client.inspect(container_name(run.id))
        if found is not None and not is_ours(found, run.id, self._installation):
            found = None
        try:
            return await self._read(run, found)
        except OSError as error:
            raise EngineFailure(f"its run folder cannot be read or written: {error}", retryable=True) from error

    async def _read(self, run: Run, found: Json | None) -> Sighting | Unstarted | Gone:
        written = await self._in_thread(run.folder.exit)
        if written is None:
            early = await self._in_thread(run.folder.claim)
            if early is not None:
                written = await self._write(run, Exit(TERMINATED, STOPPED_EARLY, early.at))
        if written is None and found is not None and found["State"]["Status"] != "created":
            run.container, run.pid = str(found["Id"]), int(found["State"]["Pid"]) or None
            if lives(found["State"]):
                return running(run.order, self._daemon.node, found, time.time())
            if has_ended(found["State"]):
                written = await self._write(run, await self._end(run, found))
        if written is None:
            claim = await self._in_thread(run.box.claim)
            if claim is Claim.NOBODY:
                return Unstarted()
            if claim is Claim.NEVER:
                written = await self._write(run, Exit(TERMINATED, STOPPED_EARLY, time.time()))
            elif found is None:
                written = await self._write(run, Exit(None, "its container was removed from outside", time.time()))
            else:  # it was started a moment ago, and the daemon does not say so yet
                return Gone()
        started_at = instant(found["State"]["StartedAt"]) if found is not None else None
        return ended(run.order, self._daemon.node, written, started_at)

    async def _end(self, run: Run, found: Json) -> Exit:
        state = found["State"]
        if may_be_oom_yet(state) and run.ending is None:
            # The kernel's word that it was for want of memory may come behind the end.
            await asyncio.sleep(_OOM_NEWS_S)
            again = await self._client.inspect(str(found["Id"]))
            state = again["State"] if again is not None else state
        claim, run_again = await self._in_thread(lambda: (run.box.claim(), run.box.was_run_again()))
        about = Circumstances(
            claim=claim,
            run_again=run_again,
            from_outside=time.time() - run.signalled_at < _SIGNAL_TELLS_S,
            booted_at=booted_at(),
            daemon_started_at=self._daemon.started_at,
            live_restore=self._daemon.live_restore,
            now=time.time(),
        )
        return end_of(state, about)

    async def _write(self, run: Run, end: Exit) -> Exit:
        def write() -> None:
            run.folder.write_exit(end)
            run.folder.tidy()
            self._launcher.release(run)

        await self._in_thread(write)
        return end
