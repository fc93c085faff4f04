"""The writer: every change of a workload passes through here, in order, and counts only when it is durable.

Changes queue up during a commit and share the next one, so that many small changes need few commits. For each change:
step() on the newest state, write, update the live state, publish the events, pass the effects to the reconcile loop.
Called by use cases and loops; knows no engine.

While the store does not answer, waiting callers get an error. Observed changes are kept in order and written as soon as
the store answers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Unpack

from commonage.control.signals import Signal
from commonage.control.state.drafts import Change, Draft, Rows, draft_of
from commonage.control.state.feed import Feed
from commonage.control.state.live_state import LiveState
from commonage.domain.errors import CommonageError, NotFound, StaleVersion, Unavailable
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import Effect, Trigger
from commonage.domain.workloads import Workload
from commonage.ports.clock import Clock
from commonage.ports.store import Batch, Filter, Store

log = logging.getLogger(__name__)
MAX_AT_ONCE = 1000
LOOK_AGAIN_S = 1.0
HALF_LIVES = 5  # older usage counts for less than a thirtieth
MAX_PAST = 50_000  # attempts, and
MAX_LATELY = 1000  # workloads: older requests rarely add information


class Writer:
    """Serialises changes to workloads. `effects` and `written` are sent after each commit."""

    def __init__(self, store: Store, live_state: LiveState, feed: Feed, clock: Clock) -> None:
        self._store, self._live_state, self._feed, self._clock = store, live_state, feed, clock
        self._queue: asyncio.Queue[Change] = asyncio.Queue()
        self._seq = 0
        self._ended = False
        self.stuck = False  # the store does not answer: loops that would only repeat their changes may pause
        self.commits = 0  # batches written since the process started; `commit_s` is the total of their seconds
        self.commit_s = 0.0
        self.changes = 0
        self.effects: Signal[[str, Effect]] = Signal()
        self.written: Signal[[Workload]] = Signal()
        self.iterations = Iterations("writer", clock.now)

    async def open(self) -> None:
        self._seq = await self._store.last_event_seq()
        nodes = [node for node in await self._store.nodes() if node.report.is_possible]
        self._live_state.load(await self._store.live(), nodes)
        await self._remember()

    async def _remember(self) -> None:
        now = self._clock.now()
        month_began, _ = self._live_state.snapshot.gpu_times.month(now)
        self._live_state.snapshot.load_gpu_time(await self._store.gpu_times(since=month_began), now)
        since = self._clock.now() - HALF_LIVES * self._live_state.snapshot.rules.half_life_s
        past = await self._store.past_holds(since=since, limit=MAX_PAST)
        lately = await self._store.workloads(Filter(), limit=MAX_LATELY)
        self._live_state.remember(reversed(past), reversed(lately.items))

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    async def insert(self, workloads: Sequence[Workload], **rows: Unpack[Rows]) -> None:
        """Write new workloads, and `rows` with them; durable when this returns.

        Raises Conflict(code="key-taken") like the store.
        After Unavailable it is unknown whether they were written; if they were, they will run.
        """
        await self._put(Change(self._future(), inserts=workloads, rows=rows))

    async def apply(self, workload_id: str, trigger: Trigger) -> Workload | None:
        """Apply a happening; returns the workload as written, None if it is not live."""
        return await self._put(Change(self._future(), workload_id=workload_id, trigger=trigger))

    def note(self, workload_id: str, trigger: Trigger) -> asyncio.Future[Workload | None]:
        """Queue a happening; await the future only to know when it is written."""
        return self._put(Change(self._future(), workload_id=workload_id, trigger=trigger))

    async def write(self, **rows: Unpack[Rows]) -> None:
        """Write rows that belong to no step of a workload. The fields are those of `Batch`."""
        await self._put(Change(self._future(), rows=rows))

    def _future(self) -> asyncio.Future[Workload | None]:
        return asyncio.get_running_loop().create_future()

    def _put(self, change: Change) -> asyncio.Future[Workload | None]:
        if self._ended:
            change.fail(_ENDED)
        else:
            self._queue.put_nowait(change)
        return change.done

    async def run(self) -> None:
        """Write until cancelled. Changes already taken from the queue are still written; other callers get an error."""
        taken: list[Change] = []
        try:
            while True:
                with self.iterations.rest():
                    taken = [await self._queue.get()]
                while not self._queue.empty() and len(taken) < MAX_AT_ONCE:
                    taken.append(self._queue.get_nowait())
                await self._write_shielded(taken)
        finally:
            self._ended = True
            while not self._queue.empty():
                taken.append(self._queue.get_nowait())
            for change in taken:
                change.fail(_ENDED)

    async def _write_shielded(self, changes: list[Change]) -> None:
        """Write the changes, even when cancelled in between: callers of a started commit were promised a result."""
        writing = asyncio.ensure_future(self._write(changes))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            self._ended = True
            if self.stuck:
                writing.cancel()  # it only waits for the store, which may take long
            await asyncio.wait([writing])
            if not writing.cancelled() and (error := writing.exception()) is not None:
                log.error("the last changes were not written: %s", error)
            raise

    async def _write(self, changes: list[Change]) -> None:
        while changes:
            try:
                draft = draft_of(changes, self._live_state, self._clock.now(), self._seq + 1)
                self._seq += len(draft.batch.events)
                if draft.batch:
                    await self._commit(draft.batch, len(changes))
            except StaleVersion:
                # Another control plane writes, which must never happen. Continuing would lose work: report it and stop.
                log.critical("another server wrote to this database; this one ends")
                raise
            except CommonageError as error:
                if not error.is_retryable:
                    await self._write_apart(changes, error)
                    return
                if not await self._wait_for_store(draft, changes, error):
                    changes = [change for change in changes if change.trigger is not None]
                    continue
            except Exception as error:  # any exception: a change that cannot be written must not end the others
                if len(changes) == 1:
                    log.exception("a change cannot be written: %s", changes[0].workload_id or sorted(changes[0].rows))
                await self._write_apart(changes, error)
                return
            self._publish(draft)
            for change in changes:
                change.answer(draft)
            return

    async def _commit(self, batch: Batch, changes: int) -> None:
        began = self._clock.now()
        await self._store.commit(batch)
        self.commits += 1
        self.commit_s += max(0.0, self._clock.now() - began)
        self.changes += changes

    async def _write_apart(self, changes: list[Change], error: Exception) -> None:
        """One of several changes cannot be written: fail that one, write the others."""
        if len(changes) == 1:
            changes[0].fail(error if isinstance(error, CommonageError) else _unexpected(error))
            return
        # A client key that is taken is the usual cause, so the other changes can most likely be written together.
        keyed = [change for change in changes if any(one.spec.key is not None for one in change.inserts)]
        others = [change for change in changes if change not in keyed]
        half = len(changes) // 2
        parts = [others, *([change] for change in keyed)] if keyed and others else [changes[:half], changes[half:]]
        for part in parts:
            await self._write(part)

    async def _wait_for_store(self, draft: Draft, changes: Sequence[Change], error: CommonageError) -> bool:
        """Wait until the store answers again; True if it had written the draft but could not confirm it."""
        self.stuck = True
        try:
            while not self._ended:
                log.warning("cannot write, trying again: %s", error)
                self._fail_callers(changes, error)
                await self._clock.sleep(LOOK_AGAIN_S)
                try:
                    return await self._is_written(draft)
                except CommonageError as again:
                    error = again
            raise error
        finally:
            self.stuck = False

    def _fail_callers(self, changes: Sequence[Change], error: CommonageError) -> None:
        """Observed changes are kept; callers that submit or drain get the error at once and can decide."""
        queued = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for change in [*changes, *queued]:
            if change.trigger is None:
                change.fail(error)
        for change in queued:
            if change.trigger is not None:
                self._queue.put_nowait(change)

    async def _is_written(self, draft: Draft) -> bool:
        ours = draft.first
        if ours is None:
            await self._store.last_event_seq()  # only checks whether the store answers
            return False
        try:
            there = await self._store.workload(ours.id)
        except NotFound:
            return False
        return (there.version, there.state, there.since) == (ours.version, ours.state, ours.since)

    def _publish(self, draft: Draft) -> None:
        # The live state first, unguarded: where it no longer equals the store, only a restart helps.
        changed = [one for one in draft.latest.values() if self._live_state.get(one.id) is not one]
        for workload in changed:
            self._live_state.put(workload)
        self._feed.publish(draft.batch.events)
        for workload in changed:
            self.written.send(workload)
        for workload_id, effect in draft.effects:
            self.effects.send(workload_id, effect)


def _unexpected(error: Exception) -> CommonageError:
    return CommonageError(f"The change was not written: {type(error).__name__}. The server's log has the traceback.")


_ENDED = Unavailable("the server is stopping; try again in a moment")
