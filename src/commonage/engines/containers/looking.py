"""Looking what became of an attempt: what is written down, what its box says and what its engine sees.

Used by the engine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from commonage.domain.errors import EngineFailure
from commonage.domain.sightings import Seen, Sighting
from commonage.engines.common.board import InThread
from commonage.engines.common.runs import Exit
from commonage.engines.containers.board import Run
from commonage.engines.containers.box import Claim
from commonage.engines.containers.hands import Absent, Hands, Lives, Look, Over, Waiting

STOPPED_EARLY = "stopped before it started"
TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Nobody had it started yet, and nobody was told not to."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nothing new can be said of it now."""


class Looker:
    """Looks, and writes ends down."""

    def __init__(self, hands: Hands, in_thread: InThread) -> None:
        self._hands = hands
        self._in_thread = in_thread

    async def look(self, run: Run) -> Sighting | Unstarted | Unclear:
        """What became of it. Raises EngineFailure while that cannot be seen, or the disk fails."""
        seen = await self._hands.look(run)
        try:
            return await self._read(run, seen)
        except OSError as error:
            raise EngineFailure(f"its run folder cannot be read or written: {error}", retryable=True) from error

    async def _read(self, run: Run, seen: Look) -> Sighting | Unstarted | Unclear:
        written = await self._written(run)
        if written is None:
            if isinstance(seen, Lives):
                return self._running(run, seen)
            if isinstance(seen, Over):
                written = await self._write(run, await seen.end())
            else:
                unread = await self._of_what_did_not_run(run, seen)
                if not isinstance(unread, Exit):
                    return unread
                written = await self._write(run, unread)
        started_at = seen.started_at if isinstance(seen, Lives | Over) else None
        return self._ended(run, written, started_at)

    async def _written(self, run: Run) -> Exit | None:
        written = await self._in_thread(run.folder.exit)
        if written is None:
            early = await self._in_thread(run.folder.claim)
            if early is not None:
                written = await self._write(run, Exit(TERMINATED, STOPPED_EARLY, early.at))
        return written

    async def _of_what_did_not_run(self, run: Run, seen: Look) -> Exit | Sighting | Unstarted | Unclear:
        claim = await self._in_thread(run.box.claim)
        if claim is Claim.NEVER:
            return Exit(TERMINATED, STOPPED_EARLY, time.time())
        if isinstance(seen, Waiting):
            return self._waiting(run, seen)
        if claim is Claim.NOBODY:
            return Unstarted()
        # Else it was started a moment ago, and that is not to be seen yet.
        return Exit(None, seen.why, time.time()) if isinstance(seen, Absent) else Unclear()

    def _waiting(self, run: Run, seen: Waiting) -> Sighting:
        node = self._hands.node_of(run.order)
        return Sighting(run.id, Seen.STARTING, time.time(), node, seen.detail, seen.progress)

    def _running(self, run: Run, seen: Lives) -> Sighting:
        now = time.time()
        node = self._hands.node_of(run.order)
        return Sighting(run.id, Seen.RUNNING, now, node, url=seen.url, started_at=seen.started_at or now)

    def _ended(self, run: Run, end: Exit, started_at: float | None) -> Sighting:
        return Sighting(
            run.id, Seen.ENDED, end.at, self._hands.node_of(run.order), end.detail,
            exit_code=end.code, oom=end.oom, started_at=started_at,
        )  # fmt: skip

    async def _write(self, run: Run, end: Exit) -> Exit:
        def write() -> None:
            run.folder.write_exit(end)
            run.folder.tidy()

        await self._in_thread(write)
        await self._hands.release(run)
        return end
