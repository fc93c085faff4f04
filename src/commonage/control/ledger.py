"""The one writer: everything that changes a workload passes through here, in order, and is durable before it counts.

Happenings queue up while a commit is under way and share the next one, so that many small changes cost few commits.
For each: step() on the newest state, write, put on the board, publish the events, hand the effects to the reconcile
loop. Called by use cases and loops; knows no engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from commonage.control.board import Board
from commonage.control.feed import Feed
from commonage.domain.errors import CommonageError, Conflict, StaleVersion, Unavailable
from commonage.domain.events import Event, EventKind
from commonage.domain.fleet import Node
from commonage.domain.lifecycle import Effect, Happening, Record, step
from commonage.domain.workloads import Workload
from commonage.ports.clock import Clock
from commonage.ports.store import Batch, Store

log = logging.getLogger(__name__)
MOST_AT_ONCE = 1000


@dataclass(slots=True)
class _Change:
    """One entry of the queue: new workloads, a happening, nodes or bare events; `done` answers the one who asked."""

    done: asyncio.Future[Workload | None]
    inserts: Sequence[Workload] = ()
    workload_id: str | None = None
    happening: Happening | None = None
    events: Sequence[Event] = ()
    nodes: Sequence[Node] = ()


@dataclass(slots=True)
class _Draft:
    """A batch being made, what it does to the board, and the effects that follow."""

    batch: Batch = field(default_factory=Batch)
    latest: dict[str, Workload] = field(default_factory=dict)
    effects: list[tuple[str, Effect]] = field(default_factory=list)


class Ledger:
    """Serialises changes to workloads. `on_effect` and `on_change` are called after the commit, and must not block."""

    def __init__(self, store: Store, board: Board, feed: Feed, clock: Clock) -> None:
        self._store, self._board, self._feed, self._clock = store, board, feed, clock
        self._queue: asyncio.Queue[_Change] = asyncio.Queue()
        self._seq = 0
        self.commits = 0  # batches written, and in `commit_s` the seconds that took, since the process began
        self.commit_s = 0.0
        self.changes = 0
        self.on_effect: Callable[[str, Effect], None] = lambda _workload_id, _effect: None
        self.on_change: Callable[[Workload], None] = lambda _workload: None

    async def open(self) -> None:
        """Read what the store remembers onto the board."""
        self._seq = await self._store.last_event_seq()
        self._board.load(await self._store.live(), await self._store.nodes())

    async def insert(self, workloads: Sequence[Workload]) -> None:
        """Write new workloads; durable when this returns. Raises Conflict(code="key-taken") like the store."""
        await self._ask(_Change(self._future(), inserts=workloads))

    async def happen(self, workload_id: str, happening: Happening) -> Workload | None:
        """Let it happen; the workload as written, None if it is not live."""
        return await self._ask(_Change(self._future(), workload_id=workload_id, happening=happening))

    def note(self, workload_id: str, happening: Happening) -> asyncio.Future[Workload | None]:
        """Let it happen soon; await the future only to know when."""
        change = _Change(self._future(), workload_id=workload_id, happening=happening)
        self._queue.put_nowait(change)
        return change.done

    async def write(self, *, events: Sequence[Event] = (), nodes: Sequence[Node] = ()) -> None:
        """Write nodes, and events that belong to no step."""
        await self._ask(_Change(self._future(), events=events, nodes=nodes))

    async def run(self) -> None:
        """Write until cancelled. What was taken from the queue is still written, or its askers are told."""
        while True:
            changes = [await self._queue.get()]
            while not self._queue.empty() and len(changes) < MOST_AT_ONCE:
                changes.append(self._queue.get_nowait())
            # A commit that was begun is seen through: its askers were promised an answer.
            writing = asyncio.ensure_future(self._write(changes))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await writing
                raise

    def _future(self) -> asyncio.Future[Workload | None]:
        return asyncio.get_running_loop().create_future()

    async def _ask(self, change: _Change) -> Workload | None:
        self._queue.put_nowait(change)
        return await change.done

    async def _write(self, changes: list[_Change]) -> None:
        draft = self._draft(changes)
        try:
            if draft.batch:
                await self._commit(draft.batch, len(changes))
        except StaleVersion:
            # Another control plane wrote: it must not, and going on would lose work. Say so and stop.
            log.critical("another server wrote to this database; this one ends")
            self._fail(changes, Unavailable("another server took over this database; start only one"))
            raise
        except CommonageError as error:
            await self._write_apart(changes, error)
            return
        self._publish(draft)
        for change in changes:
            if not change.done.done():
                change.done.set_result(draft.latest.get(change.workload_id) if change.workload_id else None)

    async def _commit(self, batch: Batch, changes: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._store.commit(batch)
        self.commits += 1
        self.commit_s += loop.time() - began
        self.changes += changes

    @property
    def waiting(self) -> int:
        """How many changes stand before the writer."""
        return self._queue.qsize()

    async def _write_apart(self, changes: list[_Change], error: CommonageError) -> None:
        """One of many cannot be written: tell the one whose fault it is, write the others."""
        if len(changes) > 1 and isinstance(error, Conflict):
            for change in changes:
                await self._write([change])
        elif changes[0].happening is not None and error.is_retryable and len(changes) == 1:
            log.warning("cannot write, trying again: %s", error)
            await self._clock.sleep(1.0)
            await self._write(changes)
        elif len(changes) > 1:
            await self._clock.sleep(0.2)
            for change in changes:
                await self._write([change])
        else:
            self._fail(changes, error)

    @staticmethod
    def _fail(changes: list[_Change], error: CommonageError) -> None:
        for change in changes:
            if not change.done.done():
                change.done.set_exception(error)
                change.done.exception()  # whoever only noted it need not ask

    def _draft(self, changes: list[_Change]) -> _Draft:
        draft = _Draft()
        now = self._clock.now()
        updated: dict[str, Workload] = {}
        for change in changes:
            draft.batch.nodes.extend(change.nodes)
            draft.batch.events.extend(change.events)
            for workload in change.inserts:
                draft.batch.inserts.append(workload)
                draft.latest[workload.id] = workload
            if change.inserts:
                draft.batch.events.append(_submitted(change.inserts, now))
            if change.workload_id is not None and change.happening is not None:
                self._draft_step(draft, updated, change.workload_id, change.happening, now)
        draft.batch.updates.extend(updated.values())
        self._number(draft.batch)
        return draft

    def _draft_step(
        self, draft: _Draft, updated: dict[str, Workload], workload_id: str, happening: Happening, now: float
    ) -> None:
        on_board = self._board.get(workload_id)
        before = draft.latest.get(workload_id, on_board)
        if before is None:
            return
        outcome = step(before, happening, now)
        after = outcome.workload
        draft.latest[workload_id] = after
        draft.effects.extend((workload_id, effect) for effect in outcome.effects if not isinstance(effect, Record))
        draft.batch.events.extend(
            _event(after, effect, now) for effect in outcome.effects if isinstance(effect, Record)
        )
        if after is not before:
            # However many steps a batch holds, the row is written once: its version rises by one.
            version = on_board.version + 1 if on_board is not None else before.version
            draft.latest[workload_id] = after = replace(after, version=version)
            if on_board is not None:
                updated[workload_id] = after
            else:
                draft.batch.inserts = [after if one.id == workload_id else one for one in draft.batch.inserts]

    def _number(self, batch: Batch) -> None:
        first = self._seq + 1
        batch.events = [replace(event, seq=first + index) for index, event in enumerate(batch.events)]
        self._seq += len(batch.events)

    def _publish(self, draft: _Draft) -> None:
        changed = [one for one in draft.latest.values() if self._board.get(one.id) is not one]
        for workload in changed:
            self._board.put(workload)
        self._feed.publish(draft.batch.events)
        for workload in changed:
            self.on_change(workload)
        for workload_id, effect in draft.effects:
            self.on_effect(workload_id, effect)


def _event(workload: Workload, record: Record, now: float) -> Event:
    spec, attempt = workload.spec, workload.attempt
    return Event(
        kind=record.kind,
        at=now,
        message=record.message,
        workload_id=workload.id,
        attempt_id=attempt.id if attempt else None,
        owner=spec.owner,
        tenant=spec.tenant,
        state=workload.state,
    )


def _submitted(workloads: Sequence[Workload], now: float) -> Event:
    first = workloads[0]
    many = f"{len(workloads)} alike, " if len(workloads) > 1 else ""
    return _event(first, Record(EventKind.SUBMITTED, f"submitted: {many}{first.spec.request}"), now)
