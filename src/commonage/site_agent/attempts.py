"""Start requests that this site accepted. Each is on disk before it is acknowledged, and started exactly once.

The engine starts an attempt at most once, whatever happens; this makes it at least once, over any crash.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from commonage import tracing
from commonage.domain.codec import from_json, to_json
from commonage.domain.errors import CommonageError, Unavailable, start_failure
from commonage.domain.nodes import Allocation
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.link.sites.messages.engine import Start
from commonage.link.sites.sqlite_file import SqliteFile, Statement
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.site_agent.bundles import SiteBundles
from commonage.site_agent.statuses import StatusTracker

_log = logging.getLogger(__name__)
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS attempts "
    "(id TEXT PRIMARY KEY, start TEXT, bundle TEXT NOT NULL, refusal TEXT, allocation TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS cron_attempts (id TEXT PRIMARY KEY, cron_job TEXT NOT NULL, own INTEGER NOT NULL)",
)
"""`start` is null once the engine has the request: it keeps its own copy. `refusal` is the end of one it refused.

`cron_attempts` are those of cron jobs; `own`: the site fired it.
"""


@dataclass(frozen=True, slots=True)
class CronAttempt:
    cron_job: str
    own: bool


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
        self._starting_bundles: dict[str, str] = {}  # by attempt
        self._allocations: dict[str, Allocation] = {}
        self._of_cron_jobs: dict[str, CronAttempt] = {}

    async def open(self) -> None:
        for _, refusal in await self._file.read("SELECT id, refusal FROM attempts WHERE refusal IS NOT NULL"):
            self._statuses.refuse(from_json(Status, json.loads(refusal), ignore_unknown=True))
        for attempt_id, allocation in await self._file.read("SELECT id, allocation FROM attempts"):
            self._allocations[attempt_id] = from_json(Allocation, json.loads(allocation), ignore_unknown=True)
        for attempt_id, cron_job, own in await self._file.read("SELECT id, cron_job, own FROM cron_attempts"):
            self._of_cron_jobs[attempt_id] = CronAttempt(cron_job, bool(own))
        query = "SELECT id FROM attempts WHERE start IS NOT NULL AND id IN (SELECT id FROM cron_attempts WHERE own)"
        for (attempt_id,) in await self._file.read(query):
            self._note_own(self._allocations[attempt_id])
        await self.retry()

    def has(self, attempt_id: str) -> bool:
        return attempt_id in self._allocations

    def live(self) -> dict[str, Allocation]:
        """The allocations of attempts that have not ended, also of those that are not started yet."""
        return {
            attempt_id: allocation
            for attempt_id, allocation in self._allocations.items()
            if (status := self._statuses.get(attempt_id)) is None or status.phase is not Phase.ENDED
        }

    def of_cron_job(self, attempt_id: str) -> CronAttempt | None:
        return self._of_cron_jobs.get(attempt_id)

    def running(self) -> list[Allocation]:
        """The allocations of attempts whose program runs; `at` is its start."""
        known = ((one, self._statuses.get(attempt_id)) for attempt_id, one in self._allocations.items())
        return [
            replace(allocation, at=status.started_at)
            for allocation, status in known
            if status is not None and status.phase is Phase.RUNNING and status.started_at is not None
        ]

    async def start(self, wanted: Start) -> None:
        """Continues if the caller is cancelled.

        Raises EngineFailure if the engine refuses it, and Unavailable on a full disk; then it is not kept.
        """
        attempt_id = wanted.request.attempt_id
        task = self._starting.get(attempt_id)
        if task is None:
            self._starting_bundles[attempt_id] = wanted.bundle
            task = self._starting[attempt_id] = asyncio.create_task(self._start(wanted))
            task.add_done_callback(lambda done: self._started(attempt_id, done))
        await asyncio.shield(task)

    def _started(self, attempt_id: str, done: asyncio.Task[None]) -> None:
        del self._starting[attempt_id]
        self._starting_bundles.pop(attempt_id, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.warning("attempt %s does not start: %s", attempt_id, error)

    async def _start(self, wanted: Start) -> None:
        attempt_id = wanted.request.attempt_id
        known = self._of_cron_jobs.get(attempt_id)
        own = known is not None and known.own
        if own or self._statuses.get(attempt_id) is not None or self._statuses.is_forgotten(attempt_id):
            return
        await self._accept(wanted, own=False)
        try:
            with tracing.span("site.engine.start", wanted.request.traceparent, attempt=attempt_id):
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

    async def fire(self, wanted: Start, *statements: Statement) -> None:
        """Start a run of a cron job that the site fires. Durable with the statements when this returns.

        A refusal of the engine becomes the end of the attempt.
        """
        attempt_id = wanted.request.attempt_id
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._starting[attempt_id] = asyncio.create_task(self._fire(wanted, statements, accepted))
        task.add_done_callback(lambda done: self._started(attempt_id, done))
        await accepted

    async def _fire(self, wanted: Start, statements: Sequence[Statement], accepted: asyncio.Future[None]) -> None:
        try:
            await self._accept(wanted, *statements, own=True)
        except CommonageError as error:
            accepted.set_exception(error)
            return
        self._note_own(wanted.request.allocation)
        accepted.set_result(None)
        await self._begin_or_refuse(wanted)

    def _note_own(self, allocation: Allocation) -> None:
        if self._statuses.get(allocation.attempt_id) is None:
            self._statuses.accept(Status(allocation.attempt_id, Phase.STARTING, allocation.at, allocation.node))

    async def _accept(self, wanted: Start, *statements: Statement, own: bool) -> None:
        request, text = wanted.request, json.dumps(to_json(wanted))
        accepted = (
            "INSERT INTO attempts (id, start, bundle, allocation) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
            (request.attempt_id, text, wanted.bundle, json.dumps(to_json(request.allocation))),
        )
        of_cron_job = (
            "INSERT INTO cron_attempts (id, cron_job, own) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING",
            (request.attempt_id, request.cron_job, int(own)),
        )
        try:
            await self._file.write(accepted, *((of_cron_job,) if request.cron_job else ()), *statements)
        except Unavailable:
            self._bundles.stored(wanted.bundle)
            await self.clear_bundles()
            raise
        self._allocations[request.attempt_id] = request.allocation
        if request.cron_job:
            self._of_cron_jobs.setdefault(request.attempt_id, CronAttempt(request.cron_job, own))
        self._bundles.stored(wanted.bundle)

    async def retry(self) -> None:
        """Start attempts that were accepted and not started: the agent was killed in between, or the engine did not
        answer.
        """
        for attempt_id, start in await self._file.read("SELECT id, start FROM attempts WHERE start IS NOT NULL"):
            if attempt_id in self._starting:
                continue
            await self._begin_or_refuse(from_json(Start, json.loads(start), ignore_unknown=True))

    async def clear(self) -> None:
        """Drop the attempts that were begun and that the engine does not know any more: they were forgotten there.

        A crash, or a start that arrived late by a half-open link, leaves such. They would hold their allocation.
        Raises EngineFailure, Unavailable.
        """
        rows = await self._file.read("SELECT id FROM attempts WHERE start IS NULL AND refusal IS NULL")
        begun = {attempt_id for (attempt_id,) in rows} - self._starting.keys()
        known = {one.attempt_id for one in await self._engine.statuses()} if begun else set()
        for attempt_id in begun - known:
            _log.warning("attempt %s is dropped: the engine does not know it any more", attempt_id)
            await self._drop(attempt_id)

    async def _begin_or_refuse(self, wanted: Start) -> None:
        try:
            await self._engine.start(self._complete(wanted))
        except CommonageError as error:
            _log.warning("attempt %s does not start: %s", wanted.request.attempt_id, error)
            if not error.is_retryable:
                await self._refuse(wanted.request, error)
        else:
            await self._note_begun(wanted.request.attempt_id)

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

    async def forget(self, attempt_id: str) -> None:
        """No effect on one that has not ended."""
        known = self._statuses.get(attempt_id)
        if known is not None and known.phase is not Phase.ENDED:
            return
        await self._engine.forget(attempt_id)
        self._statuses.forget(attempt_id)
        await self._drop(attempt_id)

    async def _drop(self, attempt_id: str) -> None:
        await self._file.write(
            ("DELETE FROM attempts WHERE id = ?", (attempt_id,)),
            ("DELETE FROM cron_attempts WHERE id = ?", (attempt_id,)),
        )
        self._allocations.pop(attempt_id, None)
        self._of_cron_jobs.pop(attempt_id, None)
        await self.clear_bundles()

    async def clear_bundles(self) -> None:
        """Delete the files that neither an attempt nor a cron job needs."""
        rows = await self._file.read("SELECT bundle FROM attempts UNION SELECT bundle FROM cron_jobs")
        await self._bundles.remove_except({*self._starting_bundles.values(), *(bundle for (bundle,) in rows)})

    async def forget_uploads(self) -> None:
        """At the end of a link: its uploads, whose starts have not arrived, are sent again by the next one."""
        self._bundles.forget_uploads()
        await self.clear_bundles()
