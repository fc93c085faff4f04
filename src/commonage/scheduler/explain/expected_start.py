"""Computes the expected start of a queued workload: simulates the next plans on the snapshot, with the expected ends.

Called by explain.py. Time limits give the best estimate: the start is no later unless a request comes ahead. Without
them, past durations (queue/durations.py) replace them. Far back in a long queue the total work ahead is divided by the
capacity, which is a guess. An expected start is not a promise. On a large cluster a promise is the expected start:
many passes would only simulate its next seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from commonage.domain.explanations import Confidence
from commonage.domain.reasons import Reason, waiting
from commonage.scheduler.explain.shortfalls import over_quota
from commonage.scheduler.model.shapes import AllocatedRequest, Floats, Ints, QueuedRequest
from commonage.scheduler.plan import SchedulingPass
from commonage.scheduler.queue.queue import QueueOrder
from commonage.scheduler.queue.quota import amounts_of
from commonage.scheduler.snapshot import Snapshot

MAX_AHEAD = 500  # queued requests ahead that are considered
MAX_PASSES = 12  # simulated passes; quick enough to answer while a user types
FEW_ALLOCATED = 100  # with more allocations, passes take longer: fewer are simulated
MANY_ALLOCATED = 1000  # with more, one ends every few seconds, and no pass is simulated
FEW_PASSES = 4  # after at most this number of passes there is time to simulate the range, too
USUAL, SOON, LATE = 0.5, 0.25, 0.9  # quantiles of past durations

BY_LIMITS = waiting.EstimateFromTimeLimits()
BY_HISTORY = waiting.EstimateFromHistory()
BY_FEW = waiting.EstimateFromFewRuns()
BY_QUOTA_RESET = waiting.EstimateFromQuotaReset()
BY_TOTAL_WORK = waiting.EstimateFromTotalWork()


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """Times are unix seconds, None if unknown. `basis` is the evidence, or why there is no estimate."""

    at: float | None
    basis: Reason
    confidence: Confidence = Confidence.UNKNOWN
    earliest: float | None = None
    latest: float | None = None


def expected_start(snapshot: Snapshot, target: QueuedRequest, now: float, promised_at: float | None) -> ExpectedStart:
    """When `target` starts if no new request comes. `promised_at`: the start that a pass now promises."""
    over = over_quota(snapshot, target, snapshot.grid.shape(target.request))
    if isinstance(over, waiting.GpuHoursSpent):
        return ExpectedStart(over.resets_at, BY_QUOTA_RESET, Confidence.GUESS, over.resets_at)
    slot = snapshot.queue.slot(target.workload_id)
    place = snapshot.order(now).place(slot) if slot >= 0 else MAX_AHEAD
    if place >= MAX_AHEAD:
        return _from_total_work(snapshot, target, now, waiting.TooManyAhead(ahead=MAX_AHEAD))
    if len(snapshot.allocations) > MANY_ALLOCATED:
        if promised_at is not None:
            return ExpectedStart(promised_at, BY_LIMITS, Confidence.LIMITS, latest=promised_at)
        return _from_total_work(snapshot, target, now, waiting.NoRoomFromNextEnds())
    by_limits = _Simulation(snapshot, target, now, None)
    at = by_limits.run()
    if at is not None:
        quick = bool(snapshot.durations) and by_limits.passes <= FEW_PASSES
        soon = _Simulation(snapshot, target, now, USUAL).run(FEW_PASSES) if quick else None
        earliest = soon if soon is not None and soon < at else None
        return ExpectedStart(at, BY_LIMITS, Confidence.LIMITS, earliest, at)
    few = len(snapshot.allocations) <= FEW_ALLOCATED
    usual, most = _Simulation(snapshot, target, now, USUAL), MAX_PASSES if few else FEW_PASSES
    at = usual.run(most) if snapshot.durations and by_limits.passes < MAX_PASSES else None
    if at is None and (by_limits.passes >= MAX_PASSES or usual.passes >= most):
        return _from_total_work(snapshot, target, now, waiting.NoRoomFromNextEnds())
    if at is None:
        return ExpectedStart(None, waiting.NoTimeLimitAhead())
    parts = (SOON, LATE) if few and usual.passes <= FEW_PASSES else ()
    starts = (_Simulation(snapshot, target, now, part).run(FEW_PASSES) for part in parts)
    others = [start for start in starts if start is not None]
    earliest, latest = min([at, *others]), max([at, *others])
    if usual.is_confident:
        return ExpectedStart(at, BY_HISTORY, Confidence.LIKELY, earliest, latest)
    return ExpectedStart(at, BY_FEW, Confidence.GUESS, earliest, latest)


class _Simulation:
    """Simulates the next plans until `target` starts.

    With `part` None only time limits end attempts. Otherwise an attempt also ends at that quantile of the durations of
    similar ones; `is_confident`: enough durations are known for all. `passes`: the number simulated.
    """

    def __init__(self, snapshot: Snapshot, target: QueuedRequest, now: float, part: float | None) -> None:
        self._snapshot, self._target, self._now, self._part = snapshot, target, now, part
        self.is_confident, self.passes = True, 0
        self._promised: float | None = None
        self._assumed: list[AllocatedRequest] = []

    def run(self, most: int = MAX_PASSES) -> float | None:
        """The start time; after `most` passes the promised start; None if unknown."""
        snapshot, now = self._snapshot, self._now
        order = snapshot.order(now)
        order = order.only(np.arange(min(MAX_AHEAD, len(order))))  # requests behind it may start first
        most = 1 if snapshot.rules.reservations else most  # a later pass would begin reservations for good
        try:
            with snapshot.trial():
                return self._until(order, most)
        finally:
            snapshot.quotas.limits.set_time(self._now)
            for allocated in self._assumed:
                self._end_at(allocated, np.inf if allocated.ends_at is None else allocated.ends_at)

    def _until(self, order: QueueOrder, most: int) -> float | None:
        snapshot, now = self._snapshot, self._now
        for allocated in list(snapshot.allocations):
            self._assume(allocated, now)
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
            for allocated in ended:
                snapshot.end(allocated)

    def _pass(self, order: QueueOrder, now: float) -> Collection[str]:
        snapshot = self._snapshot
        snapshot.refresh(now)
        if not snapshot.rules.reservations and not snapshot.fits.count[order.request_classes].any():
            return ()  # nothing fits anywhere
        self.passes += 1
        simulated = SchedulingPass(snapshot, now, order)
        simulated.run()
        if self._target.workload_id not in simulated.started:
            for allocated in simulated.started.values():
                self._assume(allocated, now)
        first = snapshot.queue.gang(self._target.gang)[0] if self._target.gang else self._target
        promise = simulated.promises.get(first.workload_id)
        self._promised = None if promise is None else promise.at
        return simulated.started

    def _assume(self, allocated: AllocatedRequest, now: float) -> None:
        """Let an allocation end when similar ones did, unless its time limit is earlier."""
        if allocated.ending or self._part is None:
            return
        group = (allocated.kind, allocated.environment, allocated.owner)
        remaining = self._snapshot.durations.remaining(group, now - allocated.allocation.at, self._part)
        if remaining is None:
            self.is_confident = self.is_confident and allocated.ends_at is not None
            return
        self.is_confident = self.is_confident and remaining.is_confident
        at = now + remaining.seconds
        if allocated.ends_at is None or at < allocated.ends_at:
            self._assumed.append(allocated)
            self._end_at(allocated, at)

    def _end_at(self, allocated: AllocatedRequest, at: float) -> None:
        slot, number = (
            self._snapshot.allocations.slot.get(allocated.allocation.attempt_id),
            self._snapshot.grid.number.get(allocated.allocation.node_key),
        )
        if slot is not None and number is not None:
            self._snapshot.allocations.ends_at[slot] = at
            self._snapshot.grid.touch(number)


def _from_total_work(snapshot: Snapshot, target: QueuedRequest, now: float, why: Reason) -> ExpectedStart:
    """A guess: when all nodes together finish the work that is allocated and queued ahead, if none idles."""
    capacity = snapshot.capacity()
    work = _allocated_work(snapshot, now) + _queued_work(snapshot, target, now)
    took = float((work / np.array([capacity.cpus_milli, capacity.memory_mib, capacity.gpu_milli])).max())
    if not np.isfinite(took):
        return ExpectedStart(None, why)
    return ExpectedStart(now + took, BY_TOTAL_WORK, Confidence.GUESS)


def _allocated_work(snapshot: Snapshot, now: float) -> Floats:
    """[cpus, memory, GPUs]: allocated amounts times their remaining seconds."""
    allocations = snapshot.allocations
    slots = np.fromiter(allocations.slot.values(), np.int64, len(allocations))
    ran_s, group_of = now - allocations.at[slots], allocations.group[slots]
    usual = snapshot.durations.remaining_s(allocations.groups, group_of, ran_s, USUAL)
    return _work(allocations.amounts[slots], np.minimum(allocations.ends_at[slots] - now, usual))


def _queued_work(snapshot: Snapshot, target: QueuedRequest, now: float) -> Floats:
    """[cpus, memory, GPUs]: amounts of the requests ahead times their seconds."""
    order, queue = snapshot.order(now), snapshot.queue
    slot = queue.slot(target.workload_id)
    ahead = order.place(slot) if slot >= 0 else len(order)
    slots, classes = order.slots[:ahead], order.request_classes[:ahead]
    groups = queue.groups_of(slots)
    present = np.flatnonzero(np.bincount(groups))
    usual = np.zeros(int(groups.max(initial=0)) + 1)
    usual[present] = snapshot.durations.remaining_s(queue.groups, present, np.zeros(len(present)), USUAL)
    # Summed for each class first: a queue has few of them.
    seconds = np.bincount(classes, np.minimum(order.limit_of[slots], usual[groups])).astype(np.float64)
    present = np.flatnonzero(seconds)
    some = (amounts_of(snapshot.fits.shape(request_class)) for request_class in present.tolist())
    amounts = np.array([(one.cpus_milli, one.memory_mib, one.gpu_milli) for one in some], np.int64)
    return _work(amounts.reshape(-1, 3), seconds[present])


def _work(amounts: Ints, seconds: Floats) -> Floats:
    """[cpus, memory, GPUs]: the sum of amounts [n, 3] times seconds [n]."""
    if not np.isfinite(seconds).all():
        return np.full(3, np.inf)
    work: Floats = seconds @ np.maximum(amounts, (0, 0, 1))
    return work
