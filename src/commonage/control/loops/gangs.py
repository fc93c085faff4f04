"""Applies the end of one gang member to the others: members of a gang run together or not at all.

Notified of every workload that is written; asks the writer to change the other members. docs/concepts/states.md has the
rules. The planner makes all members start at once. Start requests are made with the members known here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from commonage.control.signals import wait_at_most
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import StopRequested
from commonage.domain.reasons import Reason, attempts, waiting
from commonage.domain.workloads import State, StopCause, StopRequest, Workload
from commonage.ports.clock import Clock
from commonage.ports.store import Filter, Store

log = logging.getLogger(__name__)
TICK_S = 2.0
PARTIAL_S = 5.0  # allocations of one pass are written together; only a crash leaves a gang incomplete for longer
_BAD_ENDS = frozenset({State.FAILED, State.LOST, State.STOPPED})
_BY = "its gang"


class Gangs:
    """Tracks all members of each gang that has a live member, including the ended ones."""

    def __init__(self, store: Store, live_state: LiveState, writer: Writer, clock: Clock) -> None:
        self._store, self._live_state, self._writer, self._clock = store, live_state, writer, clock
        self._members: dict[str, dict[str, Workload]] = {}
        self._to_check: dict[str, None] = {}
        self._woken = asyncio.Event()
        self.iterations = Iterations("gangs", clock.now)

    async def open(self) -> None:
        for workload in self._live_state:
            self.changed(workload)
        for gang, members in self._members.items():
            size = next(iter(members.values())).spec.array_size
            if len(members) < size:
                page = await self._store.workloads(Filter(array_id=gang), limit=size)
                self._members[gang] = {member.id: member for member in page.items} | members

    def changed(self, workload: Workload) -> None:
        gang = workload.spec.array_id if workload.spec.gang else None
        if gang is None:
            return
        members = self._members.setdefault(gang, {})
        members[workload.id] = workload
        if all(member.state.is_terminal for member in members.values()):
            self._members.pop(gang)
            self._to_check.pop(gang, None)
            return
        self._to_check[gang] = None
        self._woken.set()

    def members(self, workload: Workload) -> Sequence[Workload]:
        """All members of its gang, ordered by rank; empty for a workload without a gang."""
        known = self._members.get(workload.spec.array_id or "", {}) if workload.spec.gang else {}
        return sorted(known.values(), key=lambda member: member.array_index or 0)

    async def run(self) -> None:
        while True:
            self.tick()
            with self.iterations.rest():
                await wait_at_most(TICK_S, self._woken, self._clock)
            self._woken.clear()

    def tick(self) -> None:
        if self._writer.stuck:
            return  # the store does not answer: repeating the same change every tick would only pile up
        checked = list(self._to_check)
        self._to_check.clear()
        now = self._clock.now()
        for gang in checked:
            members = list(self._members.get(gang, {}).values())
            if members:
                self._judge(members, now)
                if _started_in_part(members):
                    self._to_check[gang] = None

    def _judge(self, members: Sequence[Workload], now: float) -> None:
        ended = [member for member in members if member.state.is_terminal]
        living = [member for member in members if not member.state.is_terminal]
        bad = next((member for member in ended if member.state in _BAD_ENDS), None)
        if bad is not None:
            ended_badly = attempts.GangMemberEnded(rank=_rank(bad), state=bad.state.value, cause=bad.reason)
            self._stop(living, StopCause.DEPENDENCY, ended_badly, now)
            return
        if ended:  # the others run to their ends, but no member can restart without the ended ones
            waiting = [member for member in living if member.state.waits]
            self._stop(waiting, StopCause.DEPENDENCY, attempts.GangMemberMissing(rank=_rank(ended[0])), now)
        holding = [member for member in living if member.state.holds_allocation]
        stopped = _stopped(holding)
        retries = members[0].spec.retry.retries
        if stopped is not None:
            self._stop(living, StopCause.DEPENDENCY, attempts.GangMemberStopping(rank=_rank(stopped)), now)
        elif sum(member.retried for member in members) > retries:
            out = max(living, key=lambda member: member.since)
            none_left = attempts.GangOutOfRetries(rank=_rank(out), cause=_cause_of(out))
            self._stop(living, StopCause.DEPENDENCY, none_left, now)
        elif holding:
            self._restart(living, holding, now)

    def _restart(self, living: Sequence[Workload], holding: Sequence[Workload], now: float) -> None:
        began = max(member.attempt.allocation.at for member in holding if member.attempt is not None)
        evicted = next(
            (member for member in holding if member.stop is not None and member.stop.cause is StopCause.EVICTION), None
        )
        out = next((member for member in living if member.state.waits and _ran(member, began)), None)
        if out is not None:
            requeued = attempts.GangMemberRequeued(rank=_rank(out), cause=_cause_of(out))
            self._stop(holding, StopCause.EVICTION, requeued, now)
        elif evicted is not None:
            requeued = attempts.GangMemberRequeued(rank=_rank(evicted), cause=_cause_of(evicted))
            self._stop(holding, StopCause.EVICTION, requeued, now)
        elif _started_in_part(living) and now - began > PARTIAL_S:
            self._stop(holding, StopCause.EVICTION, attempts.GangStartedInPart(), now)

    def _stop(self, workloads: Iterable[Workload], cause: StopCause, reason: Reason, now: float) -> None:
        for member in workloads:
            has = member.stop.cause if member.stop is not None else None
            if has is None or (has is StopCause.EVICTION and cause is not StopCause.EVICTION):
                log.info("workload %s: %s", member.id, reason)
                self._writer.note(member.id, StopRequested(StopRequest(_BY, now, cause, reason)))


def _started_in_part(members: Sequence[Workload]) -> bool:
    return len({member.state.waits for member in members if not member.state.is_terminal}) == 2


def _ran(member: Workload, began: float) -> bool:
    """True if its allocation is from the same scheduling pass as those of the running members."""
    return member.attempt is not None and member.attempt.allocation.at >= began


def _stopped(holding: Sequence[Workload]) -> Workload | None:
    """A member that is being stopped for good. A time limit does not count: it applies to all members alike."""
    passing = (StopCause.EVICTION, StopCause.TIME_LIMIT)
    return next((member for member in holding if member.stop is not None and member.stop.cause not in passing), None)


def _rank(member: Workload) -> int:
    return member.array_index or 0


def _cause_of(member: Workload) -> Reason:
    match member.reason:
        case (
            attempts.Stopping(cause=cause)
            | waiting.Requeued(cause=cause)
            | waiting.RetryScheduled(cause=cause)
            | waiting.PlacementRetryScheduled(cause=cause)
        ):
            return cause
        case reason:
            return reason
