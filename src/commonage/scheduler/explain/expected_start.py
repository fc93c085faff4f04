"""Estimates when a queued workload starts: plays the coming plans through on the snapshot, with the coming ends.

Called by explain.py. Time limits give the best estimate: the start is then no later unless a request comes ahead. Where
they are missing, the past durations of such workloads (durations.py) replace them. Far back in a long queue all work
ahead is summed instead, which is a guess. The answer is not a promise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from commonage.domain.explanations import Confidence
from commonage.domain.reasons import Reason, waiting
from commonage.domain.tenants import Amounts
from commonage.scheduler.model.queued_requests import Held, QueuedRequest
from commonage.scheduler.model.shapes import Floats
from commonage.scheduler.plan import SchedulingPass
from commonage.scheduler.queue.queue import QueueOrder
from commonage.scheduler.queue.quota import amounts_of
from commonage.scheduler.snapshot import Snapshot

MOST_AHEAD = 500  # queued requests ahead that are considered
MOST_PASSES = 12  # passes played: quick enough to answer while the user types
FEW_HELD = 100  # with more held than this, passes in which all of it ends take longer: fewer are played
FEW_PASSES = 4  # after at most this number of passes there is time to play again for the range
USUAL, SOON, LATE = 0.5, 0.25, 0.9  # parts of such workloads that have ended by then

BY_LIMITS = waiting.EstimateFromTimeLimits()
BY_HISTORY = waiting.EstimateFromHistory()
BY_FEW = waiting.EstimateFromFewRuns()
BY_WORK = waiting.EstimateFromTotalWork()


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """`at`, `earliest` and `latest` are unix seconds, None if unknown; `basis` names the evidence, or why there is
    none.
    """

    at: float | None
    basis: Reason
    confidence: Confidence = Confidence.UNKNOWN
    earliest: float | None = None
    latest: float | None = None


def expected_start(snapshot: Snapshot, target: QueuedRequest, now: float) -> ExpectedStart:
    """When the queued `target` starts if no new request comes."""
    slot = snapshot.queue.slot(target.workload_id)
    place = snapshot.order(now).place(slot) if slot >= 0 else MOST_AHEAD
    if place >= MOST_AHEAD:
        return _by_work(snapshot, target, now, waiting.TooManyAhead(ahead=MOST_AHEAD))
    by_limits = _Play(snapshot, target, now, None)
    at = by_limits.run()
    if at is not None:
        quick = bool(snapshot.durations) and by_limits.passes <= FEW_PASSES
        soon = _Play(snapshot, target, now, USUAL).run(FEW_PASSES) if quick else None
        earliest = soon if soon is not None and soon < at else None
        return ExpectedStart(at, BY_LIMITS, Confidence.LIMITS, earliest, at)
    few = len(snapshot.allocations) <= FEW_HELD
    usual, most = _Play(snapshot, target, now, USUAL), MOST_PASSES if few else FEW_PASSES
    at = usual.run(most) if snapshot.durations and by_limits.passes < MOST_PASSES else None
    if at is None and (by_limits.passes >= MOST_PASSES or usual.passes >= most):
        return _by_work(snapshot, target, now, waiting.NoRoomFromNextEnds())
    if at is None:
        return ExpectedStart(None, waiting.NoTimeLimitAhead())
    parts = (SOON, LATE) if few and usual.passes <= FEW_PASSES else ()
    plays = (_Play(snapshot, target, now, part).run(FEW_PASSES) for part in parts)
    others = [one for one in plays if one is not None]
    earliest, latest = min([at, *others]), max([at, *others])
    if usual.sure:
        return ExpectedStart(at, BY_HISTORY, Confidence.LIKELY, earliest, latest)
    return ExpectedStart(at, BY_FEW, Confidence.GUESS, earliest, latest)


class _Play:
    """Plays the coming plans until `target` starts.

    `part` None: only time limits end anything. Otherwise an attempt also ends once it has run as long as that part of
    similar ones did. `sure`: enough is known of all of these. `passes`: the number played.
    """

    def __init__(self, snapshot: Snapshot, target: QueuedRequest, now: float, part: float | None) -> None:
        self._snapshot, self._target, self._now, self._part = snapshot, target, now, part
        self.sure, self.passes = True, 0
        self._promised: float | None = None
        self._assumed: list[Held] = []

    def run(self, most: int = MOST_PASSES) -> float | None:
        """The start time; after `most` passes the promised one; None if unknown."""
        snapshot, now = self._snapshot, self._now
        order = snapshot.order(now)
        order = order.only(np.arange(min(MOST_AHEAD, len(order))))  # including those behind it: they may start first
        most = 1 if snapshot.rules.reservations else most  # a pass at a later time would begin reservations for good
        try:
            with snapshot.trial():
                return self._until(order, most)
        finally:
            for held in self._assumed:
                self._end_at(held, np.inf if held.ends_at is None else held.ends_at)

    def _until(self, order: QueueOrder, most: int) -> float | None:
        snapshot, now = self._snapshot, self._now
        for held in list(snapshot.allocations):
            self._assume(held, now)
        while True:
            started = self._pass(order, now)
            if self._target.workload_id in started:
                return now
            if self.passes >= most:
                return self._promised
            if started:
                order = order.only(~np.isin(order.slots, [snapshot.queue.slot(name) for name in started]))
            ends = snapshot.next_ends(now)
            if ends is None:
                return None
            now, ended = ends
            for held in ended:
                snapshot.end(held)

    def _pass(self, order: QueueOrder, now: float) -> Collection[str]:
        """The requests that start now, in order."""
        snapshot = self._snapshot
        snapshot.ready(now)
        if not snapshot.rules.reservations and not snapshot.fits.count[order.sorts].any():
            return ()  # nothing fits anywhere
        self.passes += 1
        one = SchedulingPass(snapshot, now, order)
        one.run()
        if self._target.workload_id not in one.started:
            for held in one.started.values():
                self._assume(held, now)
        first = snapshot.queue.gang(self._target.gang)[0] if self._target.gang else self._target
        promise = one.promises.get(first.workload_id)
        self._promised = None if promise is None else promise.at
        return one.started

    def _assume(self, held: Held, now: float) -> None:
        """Let it end when similar ones do, unless its time limit ends it earlier."""
        if held.ending or self._part is None:
            return
        sort = (held.kind, held.environment, held.owner)
        remaining = self._snapshot.durations.remaining(sort, now - held.allocation.at, self._part)
        if remaining is None:
            self.sure = self.sure and held.ends_at is not None
            return
        self.sure = self.sure and remaining.sure
        at = now + remaining.seconds
        if held.ends_at is None or at < held.ends_at:
            self._assumed.append(held)
            self._end_at(held, at)

    def _end_at(self, held: Held, at: float) -> None:
        """Assume this end for looking ahead only; nothing else sees it."""
        slot, number = (
            self._snapshot.allocations.slot.get(held.allocation.attempt_id),
            self._snapshot.grid.number.get(held.allocation.node),
        )
        if slot is not None and number is not None:
            self._snapshot.allocations.ends_at[slot] = at
            self._snapshot.grid.touch(number)


def _by_work(snapshot: Snapshot, target: QueuedRequest, now: float, why: Reason) -> ExpectedStart:
    """A guess: when all nodes together finish what is held and queued ahead, if they never idle."""
    capacity = snapshot.capacity()
    work = _work_held(snapshot, now) + _work_ahead(snapshot, target, now)
    took = float((work / np.array([capacity.cpus_milli, capacity.memory_mib, capacity.gpu_milli])).max())
    if not np.isfinite(took):
        return ExpectedStart(None, why)
    return ExpectedStart(now + took, BY_WORK, Confidence.GUESS)


def _work_held(snapshot: Snapshot, now: float) -> Floats:
    """[cpus, memory, GPUs]: the sum of what is held, times its remaining seconds."""
    work = np.zeros(3)
    for held in snapshot.allocations:
        limit = np.inf if held.ends_at is None else held.ends_at - now
        usual = snapshot.durations.remaining((held.kind, held.environment, held.owner), now - held.allocation.at, USUAL)
        work += _times(Amounts.of(held.allocation), min(limit, np.inf if usual is None else usual.seconds))
    return work


def _work_ahead(snapshot: Snapshot, target: QueuedRequest, now: float) -> Floats:
    """[cpus, memory, GPUs]: the sum of what the requests ahead will hold, times their seconds."""
    order = snapshot.order(now)
    work = np.zeros(3)
    lengths: dict[tuple[str, str, str], float] = {}
    amounts: dict[int, Amounts] = {}
    for slot, sort, limit in zip(order.slots.tolist(), order.sorts.tolist(), order.limits.tolist(), strict=True):
        queued = snapshot.queue.queued_requests[slot]
        if queued is None or queued.workload_id == target.workload_id:
            break
        kind = (queued.kind, queued.environment, queued.owner)
        if kind not in lengths:
            usual = snapshot.durations.remaining(kind, 0.0, USUAL)
            lengths[kind] = np.inf if usual is None else usual.seconds
        if sort not in amounts:
            amounts[sort] = amounts_of(snapshot.fits.shape(sort))
        work += _times(amounts[sort], min(limit, lengths[kind]))
    return work


def _times(amounts: Amounts, seconds: float) -> Floats:
    return np.array([amounts.cpus_milli, amounts.memory_mib, max(amounts.gpu_milli, 1)]) * seconds
