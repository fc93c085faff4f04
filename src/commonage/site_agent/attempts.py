"""Start requests that this site accepted. Each is on disk before it is acknowledged, and started exactly once.

The engine starts an attempt at most once, whatever happens; this makes it at least once, over any crash.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace

from commonage.domain.codec import from_json, to_json
from commonage.domain.errors import CommonageError, Unavailable, start_failure
from commonage.domain.nodes import Allocation
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.link.sites.engine_messages import Start
from commonage.link.sites.sqlite_file import SqliteFile
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.site_agent.bundles import SiteBundles
from commonage.site_agent.statuses import StatusTracker

_log = logging.getLogger(__name__)
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS attempts "
    "(id TEXT PRIMARY KEY, start TEXT, bundle TEXT NOT NULL, refusal TEXT, allocation TEXT NOT NULL)",
)
"""`start` is null once the engine has the request: it keeps its own copy. `refusal` is the end of one it refused."""


class Attempts:
    """`prepare` completes a request by what only this site knows."""

    def __init__(
        self,
        engine: Engine,
        file: SqliteFile,
        bundles: SiteBundles,
        statuses: StatusTracker,
        clock: Clock,
        prepare: Callable[[StartRequest], StartRequest],
    ) -> None:
        self._engine, self._file, self._bundles = engine, file, bundles
        self._statuses, self._now, self._prepare = statuses, clock.now, prepare
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._allocations: dict[str, Allocation] = {}

    async def open(self) -> None:
        for _, refusal in await self._file.read("SELECT id, refusal FROM attempts WHERE refusal IS NOT NULL"):
            self._statuses.refuse(from_json(Status, json.loads(refusal), ignore_unknown=True))
        for attempt_id, allocation in await self._file.read("SELECT id, allocation FROM attempts"):
            self._allocations[attempt_id] = from_json(Allocation, json.loads(allocation), ignore_unknown=True)
        await self.retry()

    def running(self) -> list[Allocation]:
        """The allocations of attempts whose program runs; `at` is its start."""
        known = ((one, self._statuses.get(attempt_id)) for attempt_id, one in self._allocations.items())
        return [
            replace(allocation, at=status.started_at)
            for allocation, status in known
            if status is not None and status.phase is Phase.RUNNING and status.started_at is not None
        ]

    async def start(self, wanted: Start) -> None:
        """Goes on if the caller is cancelled.

        Raises EngineFailure if the engine refuses it, and Unavailable on a full disk; then it is not kept.
        """
        attempt_id = wanted.request.attempt_id
        task = self._starting.get(attempt_id)
        if task is None:
            task = self._starting[attempt_id] = asyncio.create_task(self._start(wanted))
            task.add_done_callback(lambda done: self._started(attempt_id, done))
        await asyncio.shield(task)

    def _started(self, attempt_id: str, done: asyncio.Task[None]) -> None:
        del self._starting[attempt_id]
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.warning("attempt %s does not start: %s", attempt_id, error)

    async def _start(self, wanted: Start) -> None:
        attempt_id = wanted.request.attempt_id
        if self._statuses.get(attempt_id) is not None:
            return
        await self._accept(wanted)
        try:
            await self._engine.start(self._complete(wanted))
        except CommonageError as error:
            try:
                await self._drop(attempt_id)
            except Unavailable:  # then it is accepted for good: it would run after a restart
                _log.warning("attempt %s is tried again: %s", attempt_id, error)
                return
            raise
        try:
            await self._note_begun(attempt_id)
        except CommonageError as error:
            _log.warning("attempt %s runs, which is noted later: %s", attempt_id, error)

    async def _accept(self, wanted: Start) -> None:
        attempt_id, allocation = wanted.request.attempt_id, wanted.request.allocation
        insert = "INSERT INTO attempts (id, start, bundle, allocation) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
        values = (attempt_id, json.dumps(to_json(wanted)), wanted.bundle, json.dumps(to_json(allocation)))
        try:
            await self._file.write((insert, values))
        except Unavailable:
            self._bundles.started(wanted.bundle)
            await self._clear_bundles()
            raise
        self._allocations[attempt_id] = allocation
        self._bundles.started(wanted.bundle)

    async def retry(self) -> None:
        """Start what was accepted and not started: the agent was killed in between, or the engine did not answer."""
        for attempt_id, start in await self._file.read("SELECT id, start FROM attempts WHERE start IS NOT NULL"):
            if attempt_id in self._starting:
                continue
            wanted = from_json(Start, json.loads(start), ignore_unknown=True)
            try:
                await self._engine.start(self._complete(wanted))
            except CommonageError as error:
                _log.warning("attempt %s does not start: %s", attempt_id, error)
                if not error.is_retryable:
                    await self._refuse(wanted.request, error)
            else:
                await self._note_begun(attempt_id)

    def _complete(self, wanted: Start) -> StartRequest:
        if not wanted.bundle:
            return self._prepare(wanted.request)
        return self._prepare(replace(wanted.request, bundle_path=str(self._bundles.path(wanted.bundle))))

    async def _note_begun(self, attempt_id: str) -> None:
        await self._file.write(("UPDATE attempts SET start = NULL WHERE id = ?", (attempt_id,)))
        await self._statuses.refresh()

    async def _refuse(self, request: StartRequest, error: CommonageError) -> None:
        end = Status(
            request.attempt_id,
            Phase.ENDED,
            self._now(),
            node=request.allocation.node,
            reason=start_failure(error),
            exit_code=1,
        )
        values = (json.dumps(to_json(end)), request.attempt_id)
        await self._file.write(("UPDATE attempts SET start = NULL, refusal = ? WHERE id = ?", values))
        self._statuses.refuse(end)

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        await self._engine.stop(attempt_id, grace_s)

    async def forget(self, attempt_id: str) -> None:
        """No effect on one that has not ended."""
        known = self._statuses.get(attempt_id)
        if known is not None and known.phase is not Phase.ENDED:
            return
        await self._engine.forget(attempt_id)
        self._statuses.forget(attempt_id)
        await self._drop(attempt_id)

    async def _drop(self, attempt_id: str) -> None:
        await self._file.write(("DELETE FROM attempts WHERE id = ?", (attempt_id,)))
        self._allocations.pop(attempt_id, None)
        await self._clear_bundles()

    async def _clear_bundles(self) -> None:
        used = {bundle for (bundle,) in await self._file.read("SELECT DISTINCT bundle FROM attempts")}
        await self._bundles.remove_except(used)
