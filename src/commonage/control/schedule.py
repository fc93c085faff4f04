"""The schedule loop: plan, leases committed, and the wish that those end who must make room. Writes nothing else."""

from __future__ import annotations

import asyncio
import logging

from commonage.control.board import Board
from commonage.control.ledger import Ledger
from commonage.control.waiting import wait_at_most
from commonage.domain.lifecycle import Leased, StopAsked
from commonage.domain.turns import Turns
from commonage.domain.workloads import StopCause, StopWish
from commonage.placement.plan import Eviction, plan
from commonage.ports.clock import Clock

log = logging.getLogger(__name__)
LONGEST_REST_S = 2.0
SHORTEST_REST_S = 0.005
REST_FOR_PLANNING = 2  # seconds of rest for one of planning, in which nothing else is answered


class Schedule:
    """Plans whenever something changed, and every two seconds as time alone may free a promise."""

    def __init__(self, board: Board, ledger: Ledger, clock: Clock) -> None:
        self._board, self._ledger, self._clock = board, ledger, clock
        self._paused = False
        self.turns = Turns("schedule", clock.now)
        self.pass_s = 0.0
        self._plan_s = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._board.changed.clear()
            # By the clock: uvloop's own time stands still while a pass plans, which is what takes long.
            began = self._clock.now()
            await self.tick()
            self.pass_s = max(0.0, self._clock.now() - began)
            # Short rests let arrivals gather, and leave time for answering when planning takes long.
            with self.turns.rest():
                await self._clock.sleep(max(SHORTEST_REST_S, REST_FOR_PLANNING * self._plan_s))
                await wait_at_most(LONGEST_REST_S, self._board.changed, self._clock)

    def pause(self) -> None:
        """Give nothing out until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Plan again."""
        self._paused = False

    async def tick(self) -> int:
        """One pass; returns how many workloads it gave a lease."""
        now = self._clock.now()
        if self._paused:
            return 0
        outcome = plan(self._board.snapshot, now)
        self._board.planned(outcome)
        self._plan_s = max(0.0, self._clock.now() - now)
        # The next pass must see all of it, or it would give the same again, and evict others for the same.
        writing = [self._ledger.happen(workload_id, Leased(lease)) for workload_id, lease in outcome.starts]
        writing += [self._evicted(eviction, now) for eviction in outcome.evictions]
        if writing:
            await asyncio.gather(*writing)
        return len(outcome.starts)

    async def _evicted(self, eviction: Eviction, now: float) -> None:
        self._board.recall(eviction.workload_id, eviction.for_id)
        wish = StopWish("the planner", now, StopCause.RECALL, eviction.reason)
        await self._ledger.happen(eviction.workload_id, StopAsked(wish))
