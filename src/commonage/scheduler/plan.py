"""Makes the plan: starts with their allocations, promised starts, and evictions. Called by the schedule loop.

One pass goes through the queue in order (queue/queue.py). A request class that fits nowhere is skipped as a whole. Of
the others only the first request of each equivalence class is examined: a refusal holds for every later equal request
that runs as long or longer. For each request the pass checks, in this order: quota (queue/quota.py), fit
(fit/fit_table.py), backfill and reservations (backfill/backfill.py), site (queue/sites.py), and the policy's costs
(policies/). A request that waits near the front gets a promised start, or preempts others (preemption/preemption.py).

`plan` leaves the snapshot unchanged; the schedule loop commits the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason
from commonage.domain.tenants import Quota
from commonage.scheduler.backfill.backfill import MAX_PROMISES, ROUNDING_S, Backfill, PossibleStart, Promise
from commonage.scheduler.fit.fit_table import choose_nodes
from commonage.scheduler.model.shapes import AllocatedRequest, Bools, Floats, Ints, QueuedRequest, Shape
from commonage.scheduler.preemption.preemption import Preemption
from commonage.scheduler.queue.equivalence_classes import EquivalenceClasses
from commonage.scheduler.queue.queue import QueueOrder
from commonage.scheduler.queue.quota import QuotaDecision
from commonage.scheduler.snapshot import Snapshot

MAX_PROMISE_ATTEMPTS = 4 * MAX_PROMISES
"""Waiting requests, from the front, for which a promise is tried. Without time limits ahead a start may be unknown."""
MAX_VICTIM_SEARCHES = 8  # failed victim searches in one pass
CLASSES_AT_ONCE = 1 << 16  # requests, from the front, that are searched at once for the first of each class
SOON_S = 60.0  # a request that can start within this time evicts nothing


@dataclass(frozen=True, slots=True)
class Eviction:
    """`workload_id` is evicted for `for_id` and requeued; its owner sees `reason`."""

    workload_id: str
    reason: Reason
    for_id: str


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """`started` and `promises` are by workload id, in order; a gang has one promise, under its first member.

    `order` is the queue as the pass saw it. `backfill` answers which nodes were open to a request. `reasons` caches
    wait reasons for explain.py.
    """

    now: float
    started: dict[str, AllocatedRequest]
    promises: dict[str, Promise]
    evictions: tuple[Eviction, ...]
    order: QueueOrder
    backfill: Backfill
    reasons: dict[object, tuple[Reason, ...]] = field(default_factory=dict)

    @property
    def starts(self) -> tuple[tuple[str, Allocation], ...]:
        return tuple((workload_id, allocated.allocation) for workload_id, allocated in self.started.items())


EndsAfter = Callable[[int], bool]
"""Whether a pass ends after this number of starts; the next pass continues. Asked after each start."""


def all_starts(_started: int) -> bool:
    return False


def plan(snapshot: Snapshot, now: float, ends_after: EndsAfter = all_starts) -> Plan:
    """The plan at `now`: deterministic for a snapshot, apart from where `ends_after` cuts it off."""
    with trial_pass(snapshot, now, ends_after) as done:
        return done.plan()


@contextmanager
def trial_pass(snapshot: Snapshot, now: float, ends_after: EndsAfter = all_starts) -> Iterator[SchedulingPass]:
    """A finished pass. Inside the context the snapshot is as it will be after the plan: for explanations."""
    snapshot.refresh(now)
    with snapshot.trial():
        finished = SchedulingPass(snapshot, now)
        finished.run(ends_after)
        yield finished


class SchedulingPass:
    """One pass over the queue. `started` and `promises` are by workload id, in order."""

    def __init__(self, snapshot: Snapshot, now: float, order: QueueOrder | None = None) -> None:
        self.snapshot, self.now = snapshot, now
        self.order = snapshot.order(now) if order is None else order
        self.backfill = Backfill(snapshot.grid, snapshot.profiles, snapshot.reserved, snapshot.rules.reservations, now)
        self.started: dict[str, AllocatedRequest] = {}
        self.promises: dict[str, Promise] = {}
        self.evictions: list[Eviction] = []
        self._bounded = any(tenant.quota != Quota() for tenant in snapshot.rules.tenants)
        self._fits_now = snapshot.fits.count > 0
        self._settled: Bools = np.zeros(len(self.order), np.bool_)  # started, or skipped by quota
        self._next_index = 0  # all requests before this index are settled or wait
        self._promise_attempts = 0
        self._may_reserve_node = True  # one node may be reserved for the head of the queue
        # (index, request class) of requests whose nodes to protect, last first; None while promises are made.
        self._protected: list[tuple[int, int]] | None = None
        self._max_run_s: Floats | None = None
        self._failed_searches: set[tuple[object, ...]] = set()  # requests for which no victims were found
        # By request class: the nodes that it fits [N], and the value of `grid.changes` for which that is true.
        self._fits: dict[int, tuple[Bools, int]] = {}
        self._changes_before = snapshot.grid.changes

    def plan(self) -> Plan:
        return Plan(self.now, self.started, self.promises, tuple(self.evictions), self.order, self.backfill)

    def run(self, ends_after: EndsAfter = all_starts) -> None:
        per_account = self._bounded or bool(self.snapshot.rules.reservations)
        equivalence_classes = EquivalenceClasses(self.order, self._fits_now, self._gangs(), per_account=per_account)
        while (next_request := equivalence_classes.next()) is not None:
            index, number = next_request
            bound = self._longest_run_s(int(self.order.request_classes[index]))
            if self.order.limit_of[self.order.slots[index]] > bound:
                equivalence_classes.refused(number, bound)
                continue
            self._process_waiting(index)
            queued_requests = self.members_at(index)
            if not self.quota_decision(queued_requests).starts:
                self._reclaim(index)
                rest = equivalence_classes.remaining(number)
                alike = self._in_same_environment(rest, queued_requests[0])
                self._settled[rest[alike]] = True
                equivalence_classes.keep(number, rest[~alike])
                continue
            longest = self._start(index, queued_requests)
            if longest is None:
                self._settled[index] = True
                equivalence_classes.started(number)
                if ends_after(len(self.started)):
                    return
            else:
                shape = self.snapshot.fits.shape(int(self.order.request_classes[index]))
                self._protect_nodes(index, self._within_quota(queued_requests[0], shape))
                equivalence_classes.refused(number, longest)
        self._process_waiting(len(self.order), protect=False)

    def _in_same_environment(self, indices: Ints, queued: QueuedRequest) -> Bools:
        """[indices]: those that a quota refuses as it refused `queued`; they differ at most in their environment."""
        if not self.snapshot.quotas.limits.by_environment:
            return np.ones(len(indices), np.bool_)
        return self.snapshot.queue.in_environment(self.order.slots[indices], queued.environment)

    def is_behind_promises(self, index: int) -> bool:
        """Whether neither a promise nor an eviction was considered for the request at this index."""
        return self._protected is not None and index >= self._next_index

    # --- order and gangs ------------------------------------------------------------------------------------------

    def _gangs(self) -> Ints:
        queue = self.snapshot.queue
        first = [queue.slot(queue.gang(name)[0].workload_id) for name in queue.gangs()]
        return np.flatnonzero(np.isin(self.order.slots, first)) if first else np.zeros(0, np.int64)

    def members_at(self, index: int) -> Sequence[QueuedRequest]:
        """The request at this index, or all members of its gang."""
        queue = self.snapshot.queue
        queued = queue.queued_requests[self.order.slots[index]]
        assert queued is not None  # the queue does not change during a pass
        return [queued] if queued.gang is None else queue.gang(queued.gang)

    def _process_waiting(self, upto: int, *, protect: bool = True) -> None:
        """Let unstarted requests before `upto` wait: promise starts to the first, protect nodes for the others."""
        while self._next_index < upto and self._protected is None:
            if len(self.promises) >= MAX_PROMISES or self._promise_attempts >= MAX_PROMISE_ATTEMPTS:
                if not protect:
                    return
                self._protected = self._find_protected(self._next_index)
                break
            if not self._settled[self._next_index] and self.order.leads[self._next_index]:
                self._promise(self._next_index)
            self._next_index += 1
        while self._protected and self._protected[-1][0] < upto:
            self._protect_nodes(self._protected.pop()[0])

    def _find_protected(self, since: int) -> list[tuple[int, int]]:
        """(index, request class): from `since` on, the first of each class that fits nowhere; in reverse order."""
        order, first = self.order, np.full(len(self._fits_now), -1)
        wanted = self.snapshot.queue.has_class(len(first)) & ~self._fits_now
        for begin in range(since, len(order), CLASSES_AT_ONCE):
            some = slice(begin, begin + CLASSES_AT_ONCE)
            waits = ~self._fits_now[order.request_classes[some]] & order.leads[some] & ~self._settled[some]
            indices = begin + np.flatnonzero(waits)[::-1]
            here = np.full(len(first), -1)
            here[order.request_classes[indices]] = indices  # the last assignment wins: the first in the order
            first = np.where(first < 0, here, first)
            if (first[wanted] >= 0).all():
                break
        protected: list[tuple[int, int]] = [
            (int(first[request_class]), request_class) for request_class in np.flatnonzero(first >= 0).tolist()
        ]
        return sorted(protected, reverse=True)

    def _longest_run_s(self, request_class: int) -> float:
        """An upper bound, in seconds, of the run time that protected nodes allow a request of this class."""
        if self._max_run_s is None:
            if self._protected is None or self.snapshot.rules.reservations or not self.backfill.protected.all():
                return np.inf
            ends, fits = self.snapshot.profiles.first_ends(), self.snapshot.fits.now
            self._max_run_s = np.full(len(fits), -np.inf)
            for fitting in np.flatnonzero(self._fits_now).tolist():
                self._max_run_s[fitting] = ends[fits[fitting]].max() - self.now + ROUNDING_S
        return float(self._max_run_s[request_class])

    def _protect_nodes(self, index: int, within: Bools | None = None) -> None:
        """Protect the nodes that a waiting request could use (of those `within`), unless it can still get a promise."""
        if self._protected is not None:
            could = self.snapshot.fits.empty[self.order.request_classes[index]]
            self.backfill.protect(could if within is None else could & within)

    # --- waiting --------------------------------------------------------------------------------------------------

    def _promise(self, index: int) -> None:
        """Promise the earliest start, or a start after evictions, or reserve a node."""
        queued_requests, request_class = self.members_at(index), int(self.order.request_classes[index])
        if len(queued_requests) < queued_requests[0].gang_size:
            return
        shape, promise = self.snapshot.fits.shape(request_class), None
        starts = self.quota_decision(queued_requests).starts
        self._promise_attempts += starts
        within = self._within_quota(queued_requests[0], shape)
        when = self._earliest_start(queued_requests, shape, within) if starts else None
        if when is None or when[0] > self.now + SOON_S:
            promise = self._evict(queued_requests, shape)
        if promise is None and when is not None:
            promise = self.backfill.promise(queued_requests, shape, when)
        is_within_timeout = self.now - queued_requests[0].submitted_at <= self.snapshot.rules.head_of_queue_timeout_s
        if promise is None and starts and self._may_reserve_node and not is_within_timeout:
            could = self.snapshot.fits.empty[request_class]
            could = could if within is None else could & within
            promises = (
                self.backfill.reserve_node(queued_requests, shape, could & site)
                for site in self._sites_for(queued_requests[0], shape)
            )
            promise = next((one for one in promises if one is not None), None)
            self._may_reserve_node = promise is None
        if promise is not None:
            self.promises[queued_requests[0].workload_id] = promise
        elif not starts:  # the quota also refuses the same request of this user further back
            account = self.order.account_of[self.order.slots[index]]
            same = np.flatnonzero((self.order.accounts == account) & (self.order.request_classes == request_class))
            self._settled[same[self._in_same_environment(same, queued_requests[0])]] = True

    def _earliest_start(
        self, queued_requests: Sequence[QueuedRequest], shape: Shape, within: Bools | None
    ) -> PossibleStart | None:
        """As `Backfill.earliest_start`; all members of a gang at one site."""
        if len(queued_requests) < 2:
            return self.backfill.earliest_start(queued_requests, shape, within)
        starts = (
            self.backfill.earliest_start(queued_requests, shape, site if within is None else within & site)
            for site in self._sites_for(queued_requests[0], shape)
        )
        return min((start for start in starts if start is not None), key=lambda start: start[0], default=None)

    def _sites_for(self, queued: QueuedRequest, shape: Shape) -> Iterator[Bools]:
        """[N]: the nodes on which all members of a gang may start, for each site that is large enough."""
        snapshot, nodes = self.snapshot, np.arange(len(self.snapshot.grid.nodes))
        if queued.gang_size < 2 or len(snapshot.sites.names) < 2:
            yield np.ones(len(nodes), np.bool_)
            return
        for name in snapshot.sites.with_room(snapshot.grid.fits_empty(shape, nodes), queued.gang_size):
            yield snapshot.sites.at(name)

    def _reclaim(self, index: int) -> None:
        """The quota refuses the request, but it may reclaim resources that others borrowed."""
        if self._protected is None and self._promise_attempts < MAX_PROMISE_ATTEMPTS:
            self._promise_attempts += 1
            self._promise(index)

    def _evict(self, queued_requests: Sequence[QueuedRequest], shape: Shape) -> Promise | None:
        snapshot, queued = self.snapshot, queued_requests[0]
        search_key = (shape.number, queued.gang_size, queued.tenant, queued.owner, queued.environment, queued.priority)
        if (
            search_key in self._failed_searches
            or len(self._failed_searches) >= MAX_VICTIM_SEARCHES
            or not self._may_evict(queued)
        ):
            return None
        exempt = (
            self._ending
            | {request.allocation.attempt_id for request in self.started.values()}
            | snapshot.reserved.counted
        )
        rules = Preemption(snapshot.grid, snapshot.allocations, snapshot.quotas, snapshot.rules.guaranteed_s, exempt)
        preemptible = self.backfill.preemptible_nodes(queued, shape)
        proposals = (
            rules.victims(queued, shape, self.now, preemptible & site) for site in self._sites_for(queued, shape)
        )
        proposal = next((one for one in proposals if one is not None), None)
        if proposal is None or not proposal.victims:
            self._failed_searches.add(search_key)
            return None
        for victim in proposal.victims:
            self.evictions.append(Eviction(victim.allocated.workload_id, victim.reason, queued.workload_id))
            self._ending.add(victim.allocated.allocation.attempt_id)
        return self.backfill.promise_after_eviction(
            queued_requests, shape, proposal.nodes, [victim.allocated for victim in proposal.victims]
        )

    def _may_evict(self, queued: QueuedRequest) -> bool:
        """Cheap test: a possible victim exists, and no eviction for the request is in progress."""
        allocated = self.snapshot.allocations
        may = allocated.preemptible & (allocated.node >= 0)
        if not self._bounded:
            may &= allocated.priority < queued.priority
        return bool(may.any()) and queued.workload_id not in self._has_evictions

    @cached_property
    def _ending(self) -> set[str]:
        return {request.allocation.attempt_id for request in self.snapshot.allocations if request.ending}

    @cached_property
    def _has_evictions(self) -> set[str]:
        return {request.evicted_for for request in self.snapshot.allocations if request.ending}

    # --- starting -------------------------------------------------------------------------------------------------

    def quota_decision(self, queued_requests: Sequence[QueuedRequest]) -> QuotaDecision:
        queued = queued_requests[0]
        if not self._bounded:
            return QuotaDecision.OWN
        shape = self.snapshot.grid.shape(queued.request)
        if self.snapshot.reserved.own_nodes(queued, shape) is not None:
            return QuotaDecision.OWN  # quotas do not count allocations within a reservation
        return self.snapshot.quotas.decision(queued, shape, len(queued_requests))

    def _start(self, index: int, queued_requests: Sequence[QueuedRequest]) -> float | None:
        """None if all started; else the longest run, in seconds, with which an equal request might still start."""
        snapshot, queued, request_class = self.snapshot, queued_requests[0], int(self.order.request_classes[index])
        if len(queued_requests) < queued.gang_size:
            return -np.inf
        shape = snapshot.fits.shape(request_class)
        fit = self._fit(queued, request_class, shape)
        startable = self.backfill.startable_nodes(queued, shape, fit)
        allowed = snapshot.sites.choose(startable, len(queued_requests), queued.tenant)
        if np.count_nonzero(allowed) < len(queued_requests):  # most requests end here: do not run the policy
            return self.backfill.latest_end(queued, shape, fit) - self.now
        costs = np.where(allowed, snapshot.policy.costs(shape, allowed), np.inf)
        numbers = choose_nodes(costs, len(queued_requests), snapshot.environments.runs(queued.environment))
        if numbers is None:
            return self.backfill.latest_end(queued, shape, fit) - self.now
        for member, number in zip(queued_requests, numbers, strict=True):
            self._place(member, shape, number)
        return None

    def _fit(self, queued: QueuedRequest, request_class: int, shape: Shape) -> Bools:
        """[N]: the nodes on which it fits now, and within quota. Read-only, until the next start."""
        grid, kept = self.snapshot.grid, self._fits.get(request_class)
        fit: Bools = self.snapshot.fits.now[request_class] if kept is None else kept[0]
        known = self._changes_before if kept is None else kept[1]
        if known < grid.changes:
            fit = fit.copy() if kept is None else fit
            changed = grid.changed_since(known)
            fit[changed] = grid.fits(shape, changed)
            self._fits[request_class] = fit, grid.changes
        within = self._within_quota(queued, shape)
        return fit if within is None else fit & within

    def _within_quota(self, queued: QueuedRequest, shape: Shape) -> Bools | None:
        """[N]: the nodes on which the quota lets the request start; None: all, or it is the same everywhere."""
        if not self._bounded:
            return None
        within = self.snapshot.quotas.nodes_within_quota(self.snapshot.grid, queued, shape, queued.gang_size)
        reserved = self.snapshot.reserved.own_nodes(queued, shape)
        return within if within is None or reserved is None else within | reserved

    def _place(self, queued: QueuedRequest, shape: Shape, number: int) -> None:
        devices = self.backfill.devices(queued, shape, number)
        if devices is None:
            with self.snapshot.reserved.without_reserved(queued, shape, number):
                devices = self.snapshot.policy.devices(shape, number)
        allocation = self.snapshot.grid.allocation(shape, number, devices, queued.attempt_id, self.now)
        allocated = allocated_by(queued, allocation)
        self.started[queued.workload_id] = allocated
        self.snapshot.start(allocated)
        self.backfill.claims.started(allocation)


def allocated_by(queued: QueuedRequest, allocation: Allocation) -> AllocatedRequest:
    return AllocatedRequest(
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
