"""The scheduler's input: nodes, allocations, queue, usage and rules.

The live state owns it and reports every change, so it is updated in place and never rebuilt. The pass and the
explanations read it, and undo their trials (`trial`). It gives the same plan as a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from commonage.domain.nodes import Node, NodeKey
from commonage.domain.requests import Request
from commonage.domain.tenants import Amounts, Rules
from commonage.domain.usage import GpuTime, PastAllocation
from commonage.scheduler.backfill.claims import AvailabilityProfiles
from commonage.scheduler.backfill.reservations import ReservedCapacity
from commonage.scheduler.fit.fit_table import FitTable
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.environments import Environments
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, Floats, Ints, QueuedRequest
from commonage.scheduler.policies import Policy
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import DEFAULT, POLICIES, Maker
from commonage.scheduler.queue.candidates import CandidateSites
from commonage.scheduler.queue.durations import Durations
from commonage.scheduler.queue.fair_share import Capacity, Usage
from commonage.scheduler.queue.gpu_time import GpuTimes
from commonage.scheduler.queue.queue import Queue, QueueOrder
from commonage.scheduler.queue.quota import QuotaAccounts
from commonage.scheduler.queue.sites import Sites


class Snapshot:
    """`allocated` are the allocations by workload id. `policies` are those that the rules may name."""

    def __init__(
        self,
        nodes: Sequence[Node] = (),
        rules: Rules | None = None,
        mix: WorkloadMix | None = None,
        policies: Mapping[str, Maker] = POLICIES,
    ) -> None:
        self.candidates = CandidateSites(rules or Rules())
        self.rules = self._with_candidates(rules or Rules())
        self.grid = Grid(nodes)
        self.queue = Queue()
        self.allocated: dict[str, AllocatedRequest] = {}
        self.usage = Usage(self.rules.half_life_s, self.rules.entry_penalty_s)
        self.gpu_times = GpuTimes(self.rules.time_zone)
        self.allocations = AllocationTable(self.grid)
        self.profiles = AvailabilityProfiles(self.grid, self.allocations)
        self.fits = FitTable(self.grid)
        self.durations = Durations()
        self._mix = mix or WorkloadMix()
        self._undo: list[tuple[AllocatedRequest, int]] | None = None
        self.environments = Environments(self.grid)
        self._capacity = (-1, Capacity())
        self._policies = policies
        self.policy = self._make_policy()
        self.reserved = ReservedCapacity(self.grid, self.allocations)
        self.sites = Sites(self.grid, self.rules)
        self._rebuild_quotas()

    def set_rules(self, rules: Rules) -> None:
        """Replace the rules. Drops past usage if the half-life or the entry penalty changes."""
        basis, self.candidates = self.candidates.basis, CandidateSites(rules)
        before, self.rules = self.rules, self._with_candidates(rules)
        self.sites.set_rules(rules)
        if self.candidates.basis != basis:
            for queued in [one for one in self.queue if self.restricted(one) is not one]:
                self.enqueue(queued)
        if rules.policy != before.policy:
            self.policy = self._make_policy()
        if (rules.half_life_s, rules.entry_penalty_s) != (self.usage.half_life_s, self.usage.entry_penalty_s):
            self.usage = Usage(rules.half_life_s, rules.entry_penalty_s)
            for allocated in self.allocated.values():
                self._charge(allocated)
            for queued in list(self.queue):
                self.queue.enqueue(queued, self.usage.account(queued.tenant, queued.owner))
        self._rebuild_quotas()

    # --- changes --------------------------------------------------------------------------------------------------

    def put(self, nodes: Sequence[Node]) -> None:
        self.grid.put(nodes)

    def remove(self, key: NodeKey) -> None:
        self.grid.remove(key)

    def arrived(self, request: Request) -> None:
        """Let the policy learn from a submitted request. Called once for each workload, queued or not."""
        self.policy.arrived(self.grid.shape(request))

    def remember(self, past: PastAllocation) -> None:
        """Charge a past allocation to its account, as far as its usage has not decayed."""
        share = self.capacity().share(past.amounts)
        self.usage.begin(past.attempt_id, past.tenant, past.owner, share, past.began_at)
        self.usage.end(past.attempt_id, max(past.began_at, past.ended_at))

    def restricted(self, queued: QueuedRequest) -> QueuedRequest:
        """The request with its present candidate sites."""
        return self.candidates.restricted(queued)

    def _with_candidates(self, rules: Rules) -> Rules:
        reservations = tuple(self.candidates.reserved(one) for one in rules.reservations)
        return replace(rules, reservations=reservations) if reservations else rules

    def enqueue(self, queued: QueuedRequest) -> None:
        queued = self.restricted(queued)
        request_class = self.queue.enqueue(queued, self.usage.account(queued.tenant, queued.owner))
        self.fits.put(request_class, queued.request)

    def dequeue(self, workload_id: str) -> None:
        self.queue.dequeue(workload_id)
        self.sites.forget(workload_id)

    def allocate(self, allocated: AllocatedRequest) -> None:
        before = self.allocated.get(allocated.workload_id)
        if before == allocated:
            return  # most writes of a workload leave its allocation unchanged
        if before is not None:
            self._remove(before)
        elif allocated.allocation.node_key in self.grid.number:
            self.sites.started(allocated.allocation.site)
        self.allocated[allocated.workload_id] = allocated
        self._charge(allocated)
        self.gpu_times.begin(allocated.tenant, allocated.owner, allocated.environment, allocated.allocation)
        self.environments.take(allocated)
        self._apply(allocated, 1)

    def release(self, workload_id: str, at: float) -> None:
        allocated = self.allocated.pop(workload_id, None)
        if allocated is not None:
            self._remove(allocated)
            at = max(at, allocated.allocation.at)  # usage is never negative
            self.usage.end(allocated.allocation.attempt_id, at)
            self.gpu_times.end(allocated.allocation.attempt_id, at)
            if not allocated.evicted_for:  # the duration of an evicted workload is not typical
                self.durations.ended(
                    allocated.kind, allocated.environment, allocated.owner, at - allocated.allocation.at
                )

    def rename(self, tenant: tuple[str, str] | None = None, owner: tuple[str, str] | None = None) -> None:
        """Give the accounts of a tenant or an owner, (before, after), their new name. None of it may run now."""
        self.usage.rename(tenant, owner)
        self.gpu_times.rename(tenant, owner)

    def load_gpu_time(self, sums: Iterable[GpuTime], now: float) -> None:
        """Count the GPU time of attempts that ended this month."""
        self.gpu_times.load(sums, now)

    def _charge(self, allocated: AllocatedRequest) -> None:
        share = self.capacity().share(Amounts.of(allocated.allocation))
        self.usage.begin(
            allocated.allocation.attempt_id, allocated.tenant, allocated.owner, share, allocated.allocation.at
        )

    def _remove(self, allocated: AllocatedRequest) -> None:
        self.environments.give(allocated)
        self._apply(allocated, -1)

    def _apply(self, allocated: AllocatedRequest, sign: int) -> None:
        if sign > 0:
            self.grid.take(allocated.allocation)
            self.allocations.take(allocated)
            self.reserved.take(allocated)
            if allocated.allocation.attempt_id not in self.reserved.counted:
                self.quotas.take(allocated)
        else:
            if allocated.allocation.attempt_id not in self.reserved.counted:
                self.quotas.give(allocated)
            self.grid.give(allocated.allocation)
            self.allocations.give(allocated.allocation.attempt_id)
            self.reserved.give(allocated)
        if self._undo is not None:
            self._undo.append((allocated, sign))

    def _rebuild_quotas(self) -> None:
        self._counted = self.reserved.counted
        counted = (
            request for request in self.allocations if request.allocation.attempt_id not in self.reserved.counted
        )
        self.quotas = QuotaAccounts(self.rules, counted, self.gpu_times, self.grid)

    # --- trials ---------------------------------------------------------------------------------------------------

    def refresh(self, now: float) -> None:
        self.allocations.sync()
        self.reserved.update(self.rules.reservations, now)
        if self.reserved.counted is not self._counted:
            self._rebuild_quotas()
        self.quotas.limits.set_time(now)
        self.fits.refresh()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo all changes made inside when the context ends. Trials may nest."""
        outer, self._undo = self._undo, []
        with self.reserved.trial():
            try:
                yield
            finally:
                tried, self._undo = self._undo, None
                for allocated, sign in reversed(tried):
                    self._apply(allocated, -sign)
                self._undo = outer

    def start(self, allocated: AllocatedRequest) -> None:
        self._apply(allocated, 1)

    def end(self, allocated: AllocatedRequest) -> None:
        self._apply(allocated, -1)

    # --- queries --------------------------------------------------------------------------------------------------

    def order(self, now: float) -> QueueOrder:
        self.fits.refresh()
        return self.queue.order(now, self.usage, self.rules, self.fits.shares(self.capacity()))

    def ranks(self, now: float) -> tuple[Ints, Floats, Floats]:
        """[slots of the queue]: priority, submission time and sort key of each request."""
        self.fits.refresh()
        return self.queue.ranks(now, self.usage, self.rules, self.fits.shares(self.capacity()))

    def position(self, workload_id: str, now: float) -> int | None:
        """Position in the queue, from 1; None if not queued."""
        slot = self.queue.slot(workload_id)
        return None if slot < 0 else self.order(now).place(slot) + 1

    def next_ends(self, now: float) -> tuple[float, list[AllocatedRequest]] | None:
        """The next time, from `now` on, at which time limits end allocations, and these; None without one."""
        ends = np.where(self.allocations.node >= 0, self.allocations.ends_at, np.inf)
        at = max(now, float(ends.min(initial=np.inf)))
        if not np.isfinite(at):
            return None
        return at, [
            request for slot in np.flatnonzero(ends <= at) if (request := self.allocations.allocated[slot]) is not None
        ]

    def capacity(self) -> Capacity:
        if self._capacity[0] != self.grid.puts:
            self._capacity = (self.grid.puts, Capacity.of(self.grid))
        return self._capacity[1]

    def _make_policy(self) -> Policy:
        return self._policies[self.rules.policy or DEFAULT](self.grid, self._mix, 0)
