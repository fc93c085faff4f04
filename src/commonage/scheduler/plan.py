"""Makes the plan: starts with their places, promises, and evictions. A pure function of a snapshot and an instant.

One pass goes through the queue in its order (queue.py). Sorts that fit nowhere are skipped as a whole; of the others
only the first of each class is examined, because a refusal holds for every later equal request that runs as long or
longer. The policy (policies/) chooses among the nodes that the gate leaves open (backfill.py), within quotas
(quota.py). When `plan` returns, the snapshot is unchanged; the schedule loop commits the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason
from commonage.domain.tenants import Quota
from commonage.scheduler.backfill.backfill import MOST_PROMISES, ROUNDING_S, Backfill, Promise
from commonage.scheduler.fit.gang import spread_out
from commonage.scheduler.model.queued_requests import Held, QueuedRequest
from commonage.scheduler.model.shapes import Bools, Floats, Ints, Shape
from commonage.scheduler.preemption.preemption import Preemption
from commonage.scheduler.queue.equivalence_classes import EquivalenceClasses
from commonage.scheduler.queue.queue import QueueOrder
from commonage.scheduler.queue.quota import QuotaDecision, amounts_of
from commonage.scheduler.snapshot import Snapshot

MOST_TRIES = 4 * MOST_PROMISES
"""The number of waiting requests, from the front, that are tried for a promise: for some, time limits tell no start."""
MOST_SEARCHES = 8  # unsuccessful victim searches in one pass, counted by kind of request
SOON_S = 60.0  # nothing is evicted for a request that can start within this time anyway


@dataclass(frozen=True, slots=True)
class Eviction:
    """`workload_id` gives its place to `for_id` and returns to the queue; `reason` is shown to its owner."""

    workload_id: str
    reason: Reason
    for_id: str


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The starts, by workload and in order. `promises` are by workload, for a gang by its first member. `order` is the
    queue as the pass saw it, `backfill` its decisions on places. `reasons` caches the answers of explain.py for each
    class.
    """

    now: float
    started: dict[str, Held]
    promises: dict[str, Promise]
    evictions: tuple[Eviction, ...]
    order: QueueOrder
    backfill: Backfill
    reasons: dict[object, tuple[Reason, ...]] = field(default_factory=dict)

    @property
    def starts(self) -> tuple[tuple[str, Allocation], ...]:
        """(workload id, allocation) of each start, in order."""
        return tuple((workload_id, held.allocation) for workload_id, held in self.started.items())


def plan(snapshot: Snapshot, now: float) -> Plan:
    """The plan at `now`. The same snapshot gives the same plan."""
    with trial_pass(snapshot, now) as done:
        return done.plan()


@contextmanager
def trial_pass(snapshot: Snapshot, now: float) -> Iterator[SchedulingPass]:
    """The pass, with the snapshot as it will be after the plan: for explanations."""
    snapshot.ready(now)
    with snapshot.trial():
        one = SchedulingPass(snapshot, now)
        one.run()
        yield one


class SchedulingPass:
    """One pass over the queue, running or finished. `started` and `promises` are by workload id, in order."""

    def __init__(self, snapshot: Snapshot, now: float, order: QueueOrder | None = None) -> None:
        self.snapshot, self.now = snapshot, now
        self.order = snapshot.order(now) if order is None else order
        self.backfill = Backfill(snapshot.grid, snapshot.profiles, snapshot.reserved, snapshot.rules.reservations, now)
        self.started: dict[str, Held] = {}
        self.promises: dict[str, Promise] = {}
        self.evictions: list[Eviction] = []
        self._bounded = any(one.quota != Quota() for one in snapshot.rules.tenants)
        self._alive = snapshot.fits.count > 0
        self._gone: Bools = np.zeros(len(self.order), np.bool_)  # started, or skipped by quota
        self._phase = 0  # every request before this index was examined
        self._tries = 0
        self._keeps = True  # one node may be kept for the first request that waits in vain
        self._guards: list[tuple[int, int]] | None = None  # (index, sort) to come, last first; set once promises end
        self._longest: Floats | None = None
        self._in_vain: set[tuple[object, ...]] = set()  # kinds of requests for which no victim was found
        self._touched: set[int] = set()  # nodes on which something started

    def plan(self) -> Plan:
        """The result of the pass."""
        return Plan(self.now, self.started, self.promises, tuple(self.evictions), self.order, self.backfill)

    def run(self) -> None:
        """Go through the queue once."""
        apart = self._bounded or bool(self.snapshot.rules.reservations)
        equivalence_classes = EquivalenceClasses(self.order, self._alive, self._gangs(), apart=apart)
        while (turn := equivalence_classes.next()) is not None:
            index, number = turn
            most = self._longest_s(int(self.order.sorts[index]))
            if self.order.limits[index] > most:
                equivalence_classes.refused(number, most)
                continue
            self._pass_over(index)
            queued_requests = self.unit(index)
            if not self.standing(queued_requests).starts:
                self._reclaim(index)
                self._gone[equivalence_classes.left(number)] = True
                continue
            longest = self._start(index, queued_requests)
            if longest is None:
                self._gone[index] = True
                equivalence_classes.started(number)
            else:
                self._wait(index)
                equivalence_classes.refused(number, longest)
        self._pass_over(len(self.order), guard=False)

    # --- order and gangs ------------------------------------------------------------------------------------------

    def _gangs(self) -> Ints:
        """The indices of the first members of gangs."""
        queue = self.snapshot.queue
        first = [queue.slot(queue.gang(name)[0].workload_id) for name in queue.gangs()]
        return np.flatnonzero(np.isin(self.order.slots, first)) if first else np.zeros(0, np.int64)

    def unit(self, index: int) -> Sequence[QueuedRequest]:
        """The requests that start together with the one at this index: it alone, or its gang."""
        queue = self.snapshot.queue
        queued = queue.queued_requests[self.order.slots[index]]
        assert queued is not None  # the queue does not change during a pass
        return [queued] if queued.gang is None else queue.gang(queued.gang)

    def _pass_over(self, upto: int, *, guard: bool = True) -> None:
        """Let all unstarted requests before `upto` wait: promise the first ones, guard nodes that others could use."""
        while self._phase < upto and self._guards is None:
            if len(self.promises) >= MOST_PROMISES or self._tries >= MOST_TRIES:
                if not guard:
                    return
                self._guards = self._to_guard(self._phase)
                break
            if not self._gone[self._phase] and self.order.leads[self._phase]:
                self._promise(self._phase)
            self._phase += 1
        while self._guards and self._guards[-1][0] < upto:
            self._wait(self._guards.pop()[0])

    def _to_guard(self, since: int) -> list[tuple[int, int]]:
        """(index, sort): the first from `since` on of each sort that fits nowhere; the last of these first."""
        order = self.order
        waits = ~self._alive[order.sorts[since:]] & order.leads[since:] & ~self._gone[since:]
        indices = since + np.flatnonzero(waits)[::-1]
        first = np.full(len(self._alive), -1)
        first[order.sorts[indices]] = indices  # of several the last assignment wins, which is the first in the order
        found: list[tuple[int, int]] = [(int(first[sort]), sort) for sort in np.flatnonzero(first >= 0).tolist()]
        return sorted(found, reverse=True)

    def _longest_s(self, sort: int) -> float:
        """The longest run in seconds that the guard allows a request of this sort: a quick estimate."""
        if self._longest is None:
            if self._guards is None or self.snapshot.rules.reservations or not self.backfill.guarded.all():
                return np.inf
            ends, fits = self.snapshot.profiles.first_ends(), self.snapshot.fits.now
            self._longest = np.full(len(fits), -np.inf)
            for one in np.flatnonzero(self._alive).tolist():
                self._longest[one] = ends[fits[one]].max() - self.now + ROUNDING_S
        return float(self._longest[sort])

    def _wait(self, index: int) -> None:
        """Let it wait. Behind the requests with a promise, guard the nodes that it could use."""
        if self._guards is not None:
            self.backfill.guard(self.snapshot.fits.empty[self.order.sorts[index]])

    # --- waiting --------------------------------------------------------------------------------------------------

    def _promise(self, index: int) -> None:
        """Promise the earliest place and time, a place made by eviction, or a kept node."""
        queued_requests, sort = self.unit(index), int(self.order.sorts[index])
        if len(queued_requests) < queued_requests[0].gang_size:
            return
        shape, promise = self.snapshot.fits.shape(sort), None
        starts = self.standing(queued_requests).starts
        self._tries += starts
        when = self.backfill.when(queued_requests, shape) if starts else None
        if when is None or when[0] > self.now + SOON_S:
            promise = self._evict(queued_requests, shape)
        if promise is None and when is not None:
            promise = self.backfill.promise(queued_requests, shape, when)
        patient = self.now - queued_requests[0].submitted_at <= self.snapshot.rules.head_of_queue_timeout_s
        if promise is None and starts and self._keeps and not patient:
            promise = self.backfill.keep(queued_requests, shape, self.snapshot.fits.empty[sort])
            self._keeps = promise is None
        if promise is not None:
            self.promises[queued_requests[0].workload_id] = promise
        elif not starts:  # nor may the same user start the same request behind it
            account = self.order.accounts[index]
            self._gone |= (self.order.accounts == account) & (self.order.sorts == sort)

    def _reclaim(self, index: int) -> None:
        """It is over its quota, but may reclaim what others borrowed."""
        if self._guards is None and self._tries < MOST_TRIES:
            self._tries += 1
            self._promise(index)

    def _evict(self, queued_requests: Sequence[QueuedRequest], shape: Shape) -> Promise | None:
        """Evict victims if the request may; not again while they are still ending."""
        snapshot, queued = self.snapshot, queued_requests[0]
        like = (shape.number, queued.gang_size, queued.tenant, queued.owner, queued.priority)
        if like in self._in_vain or len(self._in_vain) >= MOST_SEARCHES or not self._may_evict(queued):
            return None
        spared = self._ending | {one.allocation.attempt_id for one in self.started.values()} | snapshot.reserved.counted
        rules = Preemption(snapshot.grid, snapshot.allocations, snapshot.quotas, snapshot.rules.guaranteed_s, spared)
        found = rules.victims(queued, shape, self.now, self.backfill.open_to(queued, shape))
        if found is None or not found.victims:
            self._in_vain.add(like)
            return None
        for victim in found.victims:
            self.evictions.append(Eviction(victim.held.workload_id, victim.reason, queued.workload_id))
            self._ending.add(victim.held.allocation.attempt_id)
        return self.backfill.make_room(queued_requests, shape, found.nodes, [victim.held for victim in found.victims])

    def _may_evict(self, queued: QueuedRequest) -> bool:
        """True if a less important or borrowing workload could be evicted, and none is evicted for it already."""
        held = self.snapshot.allocations
        may = held.preemptible & (held.node >= 0)
        if not self._bounded:
            may &= held.priority < queued.priority
        return bool(may.any()) and queued.workload_id not in self._awaited

    @cached_property
    def _ending(self) -> set[str]:
        """The attempts whose stop is in progress."""
        return {one.allocation.attempt_id for one in self.snapshot.allocations if one.ending}

    @cached_property
    def _awaited(self) -> set[str]:
        """The workloads for which an eviction is already in progress."""
        return {one.evicted_for for one in self.snapshot.allocations if one.ending}

    # --- starting -------------------------------------------------------------------------------------------------

    def standing(self, queued_requests: Sequence[QueuedRequest]) -> QuotaDecision:
        """The quota standing of the requests that start together."""
        queued = queued_requests[0]
        if not self._bounded:
            return QuotaDecision.OWN
        shape = self.snapshot.grid.shape(queued.request)
        if self.snapshot.reserved.home(queued, shape) is not None:
            return QuotaDecision.OWN  # allocations within a reservation are not counted
        amounts = total = amounts_of(shape)
        for _ in queued_requests[1:]:
            total = total.plus(amounts)
        return self.snapshot.quotas.standing(queued.tenant, queued.owner, total)

    def _start(self, index: int, queued_requests: Sequence[QueuedRequest]) -> float | None:
        """None if each got a place; else the longest run in seconds that a similar request might still start with."""
        snapshot, queued, sort = self.snapshot, queued_requests[0], int(self.order.sorts[index])
        if len(queued_requests) < queued.gang_size:
            return -np.inf
        shape = snapshot.fits.shape(sort)
        fit = self._fit(queued, sort, shape)
        allowed = snapshot.sites.choose(self.backfill.mask(queued, shape, fit), len(queued_requests))
        if np.count_nonzero(allowed) < len(queued_requests):  # most are refused: do not run the policy for them
            return self.backfill.latest(queued, shape, fit) - self.now
        costs = np.where(allowed, snapshot.policy.costs(shape), np.inf)
        numbers = spread_out(costs, len(queued_requests), lambda number: snapshot.runs(queued.environment, number))
        if numbers is None:
            return self.backfill.latest(queued, shape, fit) - self.now
        for member, number in zip(queued_requests, numbers, strict=True):
            self._place(member, shape, number)
        return None

    def _fit(self, queued: QueuedRequest, sort: int, shape: Shape) -> Bools:
        """[N]: where it fits now, within quotas."""
        fit: Bools = self.snapshot.fits.now[sort].copy()
        if self._touched:
            touched = np.fromiter(self._touched, np.int64)
            fit[touched] = self.snapshot.grid.fits(shape, touched)
        if self._bounded:
            within = self.snapshot.quotas.mask(self.snapshot.grid, shape, queued.tenant, queued.owner)
            fit = fit if within is None else fit & within
        return fit

    def _place(self, queued: QueuedRequest, shape: Shape, number: int) -> None:
        devices = self.backfill.devices(queued, shape, number)
        if devices is None:
            with self.snapshot.reserved.aside(queued, shape, number):
                devices = self.snapshot.policy.devices(shape, number)
        allocation = self.snapshot.grid.allocation(shape, number, devices, queued.attempt_id, self.now)
        held = held_by(queued, allocation)
        self.started[queued.workload_id] = held
        self.snapshot.start(held)
        self.backfill.claims.taken(allocation)
        self._touched.add(number)


def held_by(queued: QueuedRequest, allocation: Allocation) -> Held:
    """The allocation of a request that starts now, as the next snapshot would show it."""
    return Held(
        allocation=allocation,
        workload_id=queued.workload_id,
        name="",
        owner=queued.owner,
        kind=queued.kind,
        ends_at=None if queued.time_limit_s is None else allocation.at + queued.time_limit_s,
        tenant=queued.tenant,
        environment=queued.environment,
        priority=queued.priority,
        preemptible=queued.preemptible,
        gang=queued.gang,
    )
