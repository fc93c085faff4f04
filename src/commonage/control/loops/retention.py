"""Deletes what is older than the admin wants to keep: ended workloads with their usage reports and samples, events.

In small batches through the writer, so that no submission waits long. The usage of deleted workloads stays in daily
totals. Engines delete logs and job files by themselves.
"""

from __future__ import annotations

import logging
from itertools import takewhile

from commonage.control.settings import Retention
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import HALF_LIVES, Writer
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.ports.clock import Clock
from commonage.ports.store import Store

log = logging.getLogger(__name__)
EVERY_S = 600.0
_SOON_S = 60.0
_PAUSE_S = 0.1  # between two batches, for the changes of others
WORKLOADS_AT_ONCE = 200
EVENTS_AT_ONCE = 1000


class RetentionLoop:
    """Every ten minutes. Events go by their own age: those of a workload that runs for a year go, too."""

    def __init__(self, store: Store, live_state: LiveState, writer: Writer, clock: Clock, settings: Retention) -> None:
        self._store, self._live_state, self._writer, self._clock = store, live_state, writer, clock
        self._settings = settings
        self.iterations = Iterations("retention", clock.now)

    async def run(self) -> None:
        await self._sleep(_SOON_S)
        while True:
            try:
                await self.sweep()
            except CommonageError as error:
                log.warning("old workloads and events stay for now: %s", error)
            await self._sleep(EVERY_S)

    async def sweep(self) -> None:
        """Delete everything that is too old. Raises as the store and the writer do."""
        now = self._clock.now()
        workloads = await self._delete_workloads(now - self._keep_workloads_s())
        events = await self._delete_events(now - self._settings.events_s)
        if workloads or events:
            log.info("deleted %d workloads and %d events that are older than is kept", workloads, events)
        while await self._store.reclaim():
            await self._sleep(_PAUSE_S)

    def _keep_workloads_s(self) -> float:
        """Fair share needs past allocations for some half-lives: they are read again at each start."""
        return max(self._settings.workloads_s, HALF_LIVES * self._live_state.snapshot.rules.half_life_s)

    async def _delete_workloads(self, before: float) -> int:
        deleted = 0
        while found := await self._store.expired(before=before, needed=self._needed(), limit=WORKLOADS_AT_ONCE):
            await self._writer.write(expired=found)
            deleted += len(found)
            await self._sleep(_PAUSE_S)
        return deleted

    def _needed(self) -> frozenset[str]:
        """Workloads that a live one depends on, and arrays with a live member."""
        live = list(self._live_state)
        dependencies = (dependency.workload_id for each in live for dependency in each.spec.depends_on)
        return frozenset(dependencies) | {each.spec.array_id for each in live if each.spec.array_id is not None}

    async def _delete_events(self, before: float) -> int:
        """The newest event stays, since the numbers of new ones follow it."""
        deleted, newest = 0, await self._store.last_event_seq()
        while found := await self._store.events(limit=EVENTS_AT_ONCE):
            old = [event.seq for event in takewhile(lambda event: event.at < before and event.seq < newest, found)]
            if old:
                await self._writer.write(expired_events=old)
                deleted += len(old)
            if len(old) < len(found):
                break
            await self._sleep(_PAUSE_S)
        return deleted

    async def _sleep(self, seconds: float) -> None:
        with self.iterations.rest():
            await self._clock.sleep(seconds)
