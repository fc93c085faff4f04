"""The schedule loop: plans, commits allocations, and requests evictions to make room. Writes nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from commonage import tracing
from commonage.control.signals import wait_at_most
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import AllocationAssigned, StopRequested
from commonage.domain.workloads import StopCause, StopRequest
from commonage.ports.clock import Clock
from commonage.scheduler.plan import Eviction, plan

log = logging.getLogger(__name__)
LONGEST_REST_S = 2.0
SHORTEST_REST_S = 0.005
STARTS_S = 0.025
"""A pass ends when this time has passed since its first start, so that thousands of starts are no pause of seconds for
everything else. The next pass continues with the rest of the queue.
"""
REST_FOR_PLANNING = 2  # seconds of pause per second of planning, which blocks everything else


class Schedule:
    """Plans when something changed, and at least every two seconds because time alone may release capacity."""

    def __init__(self, live_state: LiveState, writer: Writer, clock: Clock) -> None:
        self._live_state, self._writer, self._clock = live_state, writer, clock
        self._paused = False
        self.iterations = Iterations("schedule", clock.now)
        self.pass_s = 0.0
        self._plan_s = 0.0

    async def run(self) -> None:
        while True:
            self._live_state.changed.clear()
            # Uses the clock port: uvloop's own time stands still during a pass, which is what takes long.
            began = self._clock.now()
            pause_s = SHORTEST_REST_S
            try:
                await self.tick()
            except CommonageError as error:  # the next pass plans again what was not stored
                log.error("the planned allocations cannot be stored: %s", error)
                pause_s = LONGEST_REST_S
            self.pass_s = max(0.0, self._clock.now() - began)
            # Short pauses collect arrivals, and leave time for answering when planning takes long.
            with self.iterations.rest():
                await self._clock.sleep(max(pause_s, REST_FOR_PLANNING * self._plan_s))
                await wait_at_most(LONGEST_REST_S, self._live_state.changed, self._clock)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    async def tick(self) -> int:
        """Run one pass; returns how many workloads got an allocation."""
        now = self._clock.now()
        if self._paused:
            return 0
        outcome = plan(self._live_state.snapshot, now, Slice(self._clock.now).is_over)
        self._live_state.set_plan(outcome)
        self._plan_s = max(0.0, self._clock.now() - now)
        for workload_id, allocation in outcome.starts:
            if (workload := self._live_state.get(workload_id)) is not None:
                ended, node = now + self._plan_s, allocation.node
                tracing.record("scheduler.pass", workload.spec.traceparent, now, ended, workload=workload_id, node=node)
        # The next pass must see all changes, or it would allocate the same again, and evict others for the same.
        writing = [
            self._writer.apply(workload_id, AllocationAssigned(allocation))
            for workload_id, allocation in outcome.starts
        ]
        writing += [self._evicted(eviction, now) for eviction in outcome.evictions]
        for failed in await asyncio.gather(*writing, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed
        return len(outcome.starts)

    async def _evicted(self, eviction: Eviction, now: float) -> None:
        self._live_state.note_eviction(eviction.workload_id, eviction.for_id)
        stop = StopRequest("the scheduler", now, StopCause.EVICTION, eviction.reason)
        await self._writer.apply(eviction.workload_id, StopRequested(stop))


class Slice:
    """Ends a pass after its time for starts, by a clock that continues during the pass."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._first_at: float | None = None

    def is_over(self, _started: int) -> bool:
        now = self._now()
        if self._first_at is None:
            self._first_at = now
        return now - self._first_at >= STARTS_S
