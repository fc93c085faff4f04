"""Preemption and reclaim: chooses victims for a request that does not fit, first the fewest, then the least important.

The pass makes a `Preemption` over its grid, allocations and quotas, and asks `victims`. The pass decides which
requests may preempt. It stops the victims, gives their owners the reason, and claims the nodes for the request.

Only preemptible workloads are evicted, after they have run for the guaranteed time. Preemption by priority evicts lower
priorities of the request's own tenant, and of tenants that have no nominal quota or exceed it. Reclaim evicts what a
tenant borrowed, for a request within its own tenant's nominal quota. A gang is evicted as a whole, and counts as all
its members. Of equal victims the youngest goes first.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from commonage.domain.reasons import Reason, attempts
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, Bools, Ints, QueuedRequest, Shape
from commonage.scheduler.model.space import fits_in, free_rows
from commonage.scheduler.preemption.victim_sets import EvictionUnit, cheapest_set, cost_of, order_of
from commonage.scheduler.queue.quota import QuotaAccounts, QuotaDecision, amounts_of

NODES_TRIED = 16
"""Nodes on which the smallest set of victims is searched; a single sufficient victim is found on any node."""

MAX_FOR_QUOTA = 1000  # limit of units (an attempt or a gang each) evicted for quota


@dataclass(frozen=True, slots=True)
class Victim:
    allocated: AllocatedRequest
    reason: Reason


@dataclass(frozen=True, slots=True)
class PreemptionProposal:
    """The nodes on which the request, or each member of its gang, will fit; and the victims."""

    nodes: tuple[int, ...]
    victims: tuple[Victim, ...]


@dataclass(frozen=True)
class Preemption:
    """`exempt`: attempts that are not evicted, because they are within a reservation or ending already."""

    grid: Grid
    allocations: AllocationTable
    quotas: QuotaAccounts
    guaranteed_s: float
    exempt: Collection[str] = ()

    def victims(
        self, queued: QueuedRequest, shape: Shape, now: float, allowed: Bools | None = None
    ) -> PreemptionProposal | None:
        """The victims whose eviction lets `queued`, with its gang, start on `allowed` [N] nodes.

        No victims if it fits already. None if evictions do not help.
        """
        if self.quotas.limits.is_spent(queued, shape, amounts_of(shape)):
            return None
        self.allocations.sync()
        return _Search(self, queued, shape, now, allowed).run()


class _Search:
    """One search: the request, the evictable slots, and their units."""

    def __init__(
        self, rules: Preemption, queued: QueuedRequest, shape: Shape, now: float, allowed: Bools | None
    ) -> None:
        self.grid, self.allocations, self.quotas = rules.grid, rules.allocations, rules.quotas
        self.queued, self.shape = queued, shape
        self.size = queued.gang_size if queued.gang is not None else 1
        self.slots = self._evictable(rules, now)
        self._gangs = self._members()
        self.allowed = np.ones(len(self.grid.nodes), np.bool_) if allowed is None else allowed

    def _evictable(self, rules: Preemption, now: float) -> Ints:
        allocated, quotas, tenant = self.allocations, self.quotas, self.queued.tenant
        decision = self._decision()
        claims = quotas.has_quota(tenant) and decision in (QuotaDecision.OWN, QuotaDecision.RECLAIMABLE)
        borrows = np.array([name != tenant and quotas.borrows(name) for name in allocated.tenants], np.bool_)
        open_to_all = np.array([name == tenant or not quotas.has_quota(name) for name in allocated.tenants], np.bool_)
        known = allocated.node >= 0
        may = known & allocated.preemptible & (allocated.at + rules.guaranteed_s <= now)
        for attempt in rules.exempt:
            if attempt in allocated.slot:
                may[allocated.slot[attempt]] = False
        if not may.any():
            return np.empty(0, np.int64)
        less = allocated.priority < self.queued.priority
        may &= (less & (open_to_all | borrows)[allocated.tenant]) | (borrows[allocated.tenant] if claims else False)
        stay = np.unique(allocated.gang[known & ~may & (allocated.gang >= 0)])
        return np.flatnonzero(may & ~np.isin(allocated.gang, stay))

    # --- units --------------------------------------------------------------------------------------------------------

    def _members(self) -> dict[int, list[int]]:
        gangs: dict[int, list[int]] = {}
        for slot in self.slots[self.allocations.gang[self.slots] >= 0].tolist():
            gangs.setdefault(int(self.allocations.gang[slot]), []).append(slot)
        for slots in gangs.values():  # slots depend on the order in which allocations came and went
            slots.sort(key=self._attempt_of)
        return gangs

    def _unit(self, slot: int) -> EvictionUnit:
        slots = self._gangs.get(int(self.allocations.gang[slot]), [slot])
        allocated = [request for request in (self.allocations.allocated[at] for at in slots) if request is not None]
        return EvictionUnit(
            tuple(slots),
            tuple(allocated),
            max(request.priority for request in allocated),
            max(request.allocation.at for request in allocated),
        )

    def _units_on(self, number: int) -> list[EvictionUnit]:
        units = {self._unit(slot) for slot in self.slots[self.allocations.node[self.slots] == number].tolist()}
        return sorted(units, key=order_of)

    def _rows(self, units: Collection[EvictionUnit], number: int) -> Ints:
        rows = np.zeros((len(units), self.allocations.rows.shape[1]), np.int64)
        for index, unit in enumerate(units):
            for slot in unit.slots:
                if self.allocations.node[slot] == number:
                    rows[index] += self.allocations.rows[slot]
        return rows

    def is_legal(self, units: Collection[EvictionUnit]) -> bool:
        """Whether the eviction of `units` leaves all other tenants their nominal quota."""
        tenants = {allocated.tenant for unit in units for allocated in unit.allocated} - {self.queued.tenant}
        return all(self._keeps_its_own(name, units) for name in tenants if self.quotas.has_quota(name))

    def _keeps_its_own(self, tenant: str, units: Collection[EvictionUnit]) -> bool:
        """Whether the last of them can be evicted while the tenant still borrows."""
        losses = [[allocated for allocated in unit.allocated if allocated.tenant == tenant] for unit in units]
        losses = [allocated for allocated in losses if allocated]
        if len(losses) == 1:
            return self.quotas.borrows(tenant)
        with self.quotas.excluding(allocated for some in losses for allocated in some):
            return any(self._borrows_with(tenant, last) for last in losses)

    def _borrows_with(self, tenant: str, last: list[AllocatedRequest]) -> bool:
        for allocated in last:
            self.quotas.take(allocated)
        borrows = self.quotas.borrows(tenant)
        for allocated in last:
            self.quotas.give(allocated)
        return borrows

    # --- the search ---------------------------------------------------------------------------------------------------

    def run(self) -> PreemptionProposal | None:
        """The proposal, or None. If a quota needs victims, tries those first."""
        all_slots = self.slots
        if not self._starts(()):
            self.slots = self._slots_for_quota()
            proposal = self._search()
            if proposal is not None:
                return proposal
        self.slots = all_slots
        return self._search()

    def _slots_for_quota(self) -> Ints:
        """The slots whose eviction also helps with the quota that refuses."""
        if not len(self.slots):
            return self.slots
        mine, names = self.queued.tenant, self.allocations.tenants
        if self._decision() is QuotaDecision.RECLAIMABLE:
            helps = np.array([name != mine and self.quotas.borrows(name) for name in names], np.bool_)
        else:
            helps = np.array([name == mine for name in names], np.bool_)
        return np.asarray(self.slots[helps[self.allocations.tenant[self.slots]]], np.int64)

    def _search(self) -> PreemptionProposal | None:
        nodes = np.flatnonzero(self.allowed)
        free = fits_in(self.grid, self.shape, nodes, free_rows(self.grid, nodes))
        ready = nodes[free].tolist()[: self.size]
        places: list[tuple[int, tuple[EvictionUnit, ...]]] = [(number, ()) for number in ready]
        if len(places) < self.size:
            places += self._make_room(nodes[~free], self.size - len(places))
        if len(places) < self.size:
            return None
        numbers = tuple(number for number, _ in places)
        units = self._for_quota({unit for _, some in places for unit in some})
        if units is None or not self.is_legal(units):
            return None
        units_to_evict = self._minimal(numbers, units)
        victims = [
            Victim(allocated, self._reason(allocated)) for unit in units_to_evict for allocated in unit.allocated
        ]
        return PreemptionProposal(numbers, tuple(victims))

    def _make_room(self, nodes: Ints, wanted: int) -> list[tuple[int, tuple[EvictionUnit, ...]]]:
        """(node, units to evict) of the cheapest nodes; at most `wanted`, fewer if there are not enough."""
        nodes = nodes[np.isin(nodes, self.allocations.node[self.slots])]
        rows = free_rows(self.grid, nodes) + self.allocations.sum(self.slots)[nodes]
        nodes = nodes[fits_in(self.grid, self.shape, nodes, rows)]
        if len(nodes) < wanted:
            return []
        if wanted == 1:
            place = self._single_victim(nodes)
            if place is not None:
                return [place]
        places = []
        for number in self._by_likely_victims(nodes)[: wanted + NODES_TRIED].tolist():
            units = self._units_on(number)
            least = cheapest_set(self.grid, self.shape, number, units, self._rows(units, number), self.is_legal)
            if least is not None:
                places.append((number, least))
        places.sort(key=lambda pair: (cost_of(pair[1]), pair[0]))
        return places[:wanted]

    def _single_victim(self, nodes: Ints) -> tuple[int, tuple[EvictionUnit, ...]] | None:
        slots = self.slots[np.isin(self.allocations.node[self.slots], nodes) & (self.allocations.gang[self.slots] < 0)]
        at = self.allocations.node[slots]
        rows = free_rows(self.grid, at) + self.allocations.rows[slots]
        enough = slots[fits_in(self.grid, self.shape, at, rows)]
        if not len(enough):
            return None
        first = enough[np.lexsort((-self.allocations.at[enough], self.allocations.priority[enough]))[0]]
        like = (self.allocations.priority[enough] == self.allocations.priority[first]) & (
            self.allocations.at[enough] == self.allocations.at[first]
        )
        best = min(enough[like].tolist(), key=self._attempt_of)
        return int(self.allocations.node[best]), (self._unit(best),)

    def _attempt_of(self, slot: int) -> str:
        allocated = self.allocations.allocated[slot]
        return "" if allocated is None else allocated.allocation.attempt_id

    def _by_likely_victims(self, nodes: Ints) -> Ints:
        """The nodes by their likely number of victims: missing resources over those of the largest victim."""
        allocated, devices = self.allocations, self.grid.kind.shape[1]
        most = np.ones((len(self.grid.nodes), 3), np.int64)
        touched = np.count_nonzero(allocated.rows[self.slots][:, 2 : 2 + devices], axis=1)
        sizes = np.column_stack((allocated.rows[self.slots][:, :2], touched))
        np.maximum.at(most, allocated.node[self.slots], sizes)
        fit = np.count_nonzero(self.grid.devices_fit(self.shape, nodes), axis=1) if self.shape.devices else 0
        shortfall = np.column_stack(
            (
                self.shape.cpus_milli - self.grid.cpus[nodes],
                self.shape.memory_mib - self.grid.memory[nodes],
                np.full(len(nodes), self.shape.devices) - fit,
            )
        )
        few = np.maximum(0, -(-shortfall // most[nodes])).max(axis=1)
        return nodes[np.argsort(few, kind="stable")]

    # --- quotas --------------------------------------------------------------------------------

    def _decision(self) -> QuotaDecision:
        return self.quotas.decision(self.queued, self.shape, self.size)

    def _starts(self, units: Collection[EvictionUnit]) -> bool:
        with self.quotas.excluding(allocated for unit in units for allocated in unit.allocated):
            return self._decision().starts

    def _for_quota(self, units: set[EvictionUnit]) -> set[EvictionUnit] | None:
        """`units` and the further units that the quotas need; None if that does not help."""
        if self._starts(units):
            return units
        units = set(units)
        more = sorted({self._unit(slot) for slot in self._slots_for_quota().tolist()} - units, key=order_of)
        with ExitStack() as gone:
            gone.enter_context(self.quotas.excluding(allocated for unit in units for allocated in unit.allocated))
            for unit in more:
                if len(units) > MAX_FOR_QUOTA or not self._may_lose(unit):
                    continue
                units.add(unit)
                gone.enter_context(self.quotas.excluding(unit.allocated))
                if self._decision().starts:
                    return units
        return None

    def _may_lose(self, unit: EvictionUnit) -> bool:
        """Whether all other tenants of a unit that have a quota currently borrow."""
        tenants = {allocated.tenant for allocated in unit.allocated} - {self.queued.tenant}
        return all(self.quotas.borrows(name) for name in tenants if self.quotas.has_quota(name))

    def _minimal(self, numbers: tuple[int, ...], units: set[EvictionUnit]) -> list[EvictionUnit]:
        """The units without superfluous ones; the most important are spared first."""
        kept = set(units)
        for unit in sorted(units, key=order_of, reverse=True):
            fewer = kept - {unit}
            if self._fits(numbers, fewer) and self._starts(fewer):
                kept = fewer
        return sorted(kept, key=order_of)

    def _fits(self, numbers: tuple[int, ...], units: Collection[EvictionUnit]) -> bool:
        nodes = np.array(numbers)
        freed = np.array([self._rows(units, number).sum(axis=0) for number in numbers])
        return bool(fits_in(self.grid, self.shape, nodes, free_rows(self.grid, nodes) + freed).all())

    def _reason(self, allocated: AllocatedRequest) -> Reason:
        queued, is_session = self.queued, allocated.kind == "session"
        if allocated.priority < queued.priority:
            known = allocated.tenant == queued.tenant
            return attempts.Preempted(
                by_owner=queued.owner if known else "", by_kind=queued.kind if known else "", is_session=is_session
            )
        # The tenant is another one, which the owner of the preempted workload may not know.
        return attempts.Reclaimed(is_session=is_session)
