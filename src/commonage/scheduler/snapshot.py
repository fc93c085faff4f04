"""The planner's input: nodes, allocations, queue and rules. It is updated in place, never rebuilt.

The live state owns it and reports every change; `plan()` and the explanations read it, and undo what they try
(`trial`). An
updated snapshot gives the same plan as one built from the current state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from commonage.domain.nodes import Node
from commonage.domain.requests import Request
from commonage.domain.tenants import Amounts, Rules
from commonage.domain.usage import PastHold
from commonage.scheduler.backfill.availability import AvailabilityProfiles
from commonage.scheduler.backfill.reservations import ReservedCapacity
from commonage.scheduler.fit.fit_table import FitTable
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.queued_requests import Held, QueuedRequest
from commonage.scheduler.model.shapes import Floats, Ints
from commonage.scheduler.policies import Policy
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import DEFAULT, POLICIES, Maker
from commonage.scheduler.queue.durations import Durations
from commonage.scheduler.queue.fair_share import Capacity, Usage
from commonage.scheduler.queue.queue import Queue, QueueOrder
from commonage.scheduler.queue.quota import QuotaAccounts
from commonage.scheduler.queue.sites import Sites


class Snapshot:
    """Nodes, allocations, queue, usage and rules. `held` is by workload id; the policy learns from `arrived`,
    `durations` from ended workloads. `policies` are those that the rules may name.
    """

    def __init__(
        self,
        nodes: Sequence[Node] = (),
        rules: Rules | None = None,
        mix: WorkloadMix | None = None,
        policies: Mapping[str, Maker] = POLICIES,
    ) -> None:
        self.rules = rules or Rules()
        self.grid = Grid(nodes)
        self.queue = Queue()
        self.held: dict[str, Held] = {}
        self.usage = Usage(self.rules.half_life_s, self.rules.entry_penalty_s)
        self.allocations = AllocationTable(self.grid)
        self.profiles = AvailabilityProfiles(self.grid, self.allocations)
        self.fits = FitTable(self.grid)
        self.durations = Durations()
        self._mix = mix or WorkloadMix()
        self._tried: list[tuple[Held, int]] | None = None
        self._environments: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._capacity = (-1, Capacity())
        self._policies = policies
        self.policy = self._make_policy()
        self.reserved = ReservedCapacity(self.grid, self.allocations)
        self.sites = Sites(self.grid, self.rules)
        self._count()

    def set_rules(self, rules: Rules) -> None:
        """Apply these rules from now on. Past usage is dropped if the half-life or the entry penalty changes."""
        before, self.rules = self.rules, rules
        if (rules.sites, rules.site_policy) != (before.sites, before.site_policy):
            self.sites = Sites(self.grid, rules)
        if rules.policy != before.policy:
            self.policy = self._make_policy()
        if (rules.half_life_s, rules.entry_penalty_s) != (self.usage.half_life_s, self.usage.entry_penalty_s):
            self.usage = Usage(rules.half_life_s, rules.entry_penalty_s)
            for held in self.held.values():
                self._charge(held)
            for queued in list(self.queue):
                self.queue.enqueue(queued, self.usage.account(queued.tenant, queued.owner))
        self._count()

    # --- what happens ---------------------------------------------------------------------------------------------

    def put(self, nodes: Sequence[Node]) -> None:
        """Add or replace nodes."""
        self.grid.put(nodes)

    def remove(self, name: str) -> None:
        """Remove a node for good, with all that it held."""
        self.grid.remove(name)

    def arrived(self, request: Request) -> None:
        """Let the policy learn from a submitted request. Once for each workload, whether it waits or not."""
        self.policy.arrived(self.grid.shape(request))

    def remember(self, past: PastHold) -> None:
        """Count a past allocation, as far as it has not decayed."""
        share = self.capacity().share(past.amounts)
        self.usage.charge(past.attempt_id, past.tenant, past.owner, share, (past.since, past.until))

    def enqueue(self, queued: QueuedRequest) -> None:
        """Add a waiting request."""
        sort = self.queue.enqueue(queued, self.usage.account(queued.tenant, queued.owner))
        self.fits.put(sort, queued.request)

    def dequeue(self, workload_id: str) -> None:
        """Remove a request that no longer waits."""
        self.queue.dequeue(workload_id)
        self.sites.forget(workload_id)

    def allocate(self, held: Held) -> None:
        """Add or update an allocation."""
        before = self.held.get(held.workload_id)
        if before == held:
            return  # most writes of a workload do not change its allocation
        if before is not None:
            self._forget(before)
        elif held.allocation.node in self.grid.number:
            self.sites.started(self.grid.nodes[self.grid.number[held.allocation.node]].site)
        self.held[held.workload_id] = held
        self._charge(held)
        self._environments[held.environment][held.allocation.node] += 1
        self._reckon(held, 1)

    def release(self, workload_id: str, at: float) -> None:
        """Free the allocation of a workload, ended at `at`."""
        held = self.held.pop(workload_id, None)
        if held is not None:
            self._forget(held)
            self.usage.end(held.allocation.attempt_id, at)
            if not held.evicted_for:  # an evicted workload would have run on: its duration says nothing
                self.durations.ended(held.kind, held.environment, held.owner, at - held.allocation.at)

    def _charge(self, held: Held) -> None:
        share = self.capacity().share(Amounts.of(held.allocation))
        self.usage.begin(held.allocation.attempt_id, held.tenant, held.owner, share, held.allocation.at)

    def _forget(self, held: Held) -> None:
        runs = self._environments[held.environment]
        runs[held.allocation.node] -= 1
        if not runs[held.allocation.node]:
            del runs[held.allocation.node]
            if not runs:
                del self._environments[held.environment]
        self._reckon(held, -1)

    def _reckon(self, held: Held, sign: int) -> None:
        """Add an allocation to all counters (1), or remove it (-1)."""
        if sign > 0:
            self.grid.take(held.allocation)
            self.allocations.take(held)
            self.reserved.take(held)
            if held.allocation.attempt_id not in self.reserved.counted:
                self.quotas.take(held)
        else:
            if held.allocation.attempt_id not in self.reserved.counted:
                self.quotas.give(held)
            self.grid.give(held.allocation)
            self.allocations.give(held.allocation.attempt_id)
            self.reserved.give(held)
        if self._tried is not None:
            self._tried.append((held, sign))

    def _count(self) -> None:
        """Rebuild the quota accounts: allocations within a reservation are not counted."""
        self._counted = self.reserved.counted
        counted = (one for one in self.allocations if one.allocation.attempt_id not in self.reserved.counted)
        self.quotas = QuotaAccounts(self.rules, counted)

    # --- trying ---------------------------------------------------------------------------------------------------

    def ready(self, now: float) -> None:
        """Bring time-dependent parts up to `now`. Called before a pass."""
        self.allocations.sync()
        self.reserved.update(self.rules.reservations, now)
        if self.reserved.counted is not self._counted:
            self._count()
        self.fits.refresh()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo all starts and ends inside at the end. Trials may nest."""
        outer, self._tried = self._tried, []
        with self.reserved.as_it_was():
            try:
                yield
            finally:
                tried, self._tried = self._tried, None
                for held, sign in reversed(tried):
                    self._reckon(held, -sign)
                self._tried = outer

    def start(self, held: Held) -> None:
        """Within a trial: start it."""
        self._reckon(held, 1)

    def end(self, held: Held) -> None:
        """Within a trial: end it."""
        self._reckon(held, -1)

    # --- answers --------------------------------------------------------------------------------------------------

    def order(self, now: float) -> QueueOrder:
        """The queue in order, as of `now`."""
        self.fits.refresh()
        return self.queue.order(now, self.usage, self.rules, self.fits.shares(self.capacity()))

    def ranks(self, now: float) -> tuple[Ints, Floats, Floats]:
        """[slots of the queue]: priority, submission time and key of each request, from which the order is made."""
        self.fits.refresh()
        return self.queue.ranks(now, self.usage, self.rules, self.fits.shares(self.capacity()))

    def position(self, workload_id: str, now: float) -> int | None:
        """Its place in the queue, from 1; None if it does not wait."""
        slot = self.queue.slot(workload_id)
        return None if slot < 0 else self.order(now).place(slot) + 1

    def next_ends(self, now: float) -> tuple[float, list[Held]] | None:
        """The next instant, from `now` on, at which time limits end something, and what ends; None if there is none."""
        ends = np.where(self.allocations.node >= 0, self.allocations.ends_at, np.inf)
        at = max(now, float(ends.min(initial=np.inf)))
        if not np.isfinite(at):
            return None
        return at, [one for slot in np.flatnonzero(ends <= at) if (one := self.allocations.held[slot]) is not None]

    def runs(self, environment: str, number: int) -> bool:
        """True if the node already runs the environment."""
        return self.grid.nodes[number].name in self._environments.get(environment, ())

    def capacity(self) -> Capacity:
        """The total resources."""
        if self._capacity[0] != self.grid.puts:
            self._capacity = (self.grid.puts, Capacity.of(self.grid))
        return self._capacity[1]

    def _make_policy(self) -> Policy:
        return self._policies[self.rules.policy or DEFAULT](self.grid, self._mix, 0)
