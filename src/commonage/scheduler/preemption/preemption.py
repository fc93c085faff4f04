"""Chooses victims where something more important does not fit: the fewest, then the least important, then the youngest.

The pass makes a `Preemption` over its grid, holdings and quotas, and asks `victims` for a queued request. The answer is
a proposal: the pass stops the victims, gives the reason to their owners, and keeps the nodes for the request meanwhile.
The pass also decides which requests may evict.

Only preemptible workloads are evicted, and only after they have run for the guaranteed time. By priority: less
important workloads of the request's own tenant, or of a tenant that has no nominal quota or holds more than it. By
reclaim: what a tenant borrowed, for a request within its own tenant's quota. A gang is evicted as a whole, and counts
as all its members.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from commonage.domain.reasons import Reason, attempts
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.queued_requests import Held, QueuedRequest
from commonage.scheduler.model.shapes import Bools, Ints, Shape
from commonage.scheduler.model.space import fits_in, free_rows
from commonage.scheduler.preemption.victim_sets import EvictionUnit, cheapest_on, cost_of, order_of
from commonage.scheduler.queue.quota import QuotaAccounts, QuotaDecision, amounts_of

NODES_TRIED = 16
"""The number of most promising nodes on which the least set is searched; one sufficient victim is found on any node."""

MOST_FOR_QUOTA = 1000
"""About this number of units (an attempt or a gang each) is evicted at most for a quota (lent, or the own bound)."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A workload to evict, and the reason shown to its owner."""

    held: Held
    reason: Reason


@dataclass(frozen=True, slots=True)
class PreemptionProposal:
    """The numbers of the nodes on which the request, or each of its gang, will fit, and the victims."""

    nodes: tuple[int, ...]
    victims: tuple[Victim, ...]


@dataclass(frozen=True)
class Preemption:
    """`spared` are attempts that stay: those within a reservation, and those that are ending already."""

    grid: Grid
    allocations: AllocationTable
    quotas: QuotaAccounts
    guaranteed_s: float
    spared: Collection[str] = ()

    def victims(
        self, queued: QueuedRequest, shape: Shape, now: float, allowed: Bools | None = None
    ) -> PreemptionProposal | None:
        """The victims whose eviction lets `queued` (all of its gang, if it has one) start on nodes that are `allowed`
        [N].

        No victims if it fits already. None if evictions would not help.
        """
        self.allocations.sync()
        return _Search(self, queued, shape, now, allowed).run()


class _Search:
    """One search: the request, the evictable slots, and the units in which they are evicted."""

    def __init__(
        self, rules: Preemption, queued: QueuedRequest, shape: Shape, now: float, allowed: Bools | None
    ) -> None:
        self.grid, self.allocations, self.quotas = rules.grid, rules.allocations, rules.quotas
        self.queued, self.shape = queued, shape
        self.size = queued.gang_size if queued.gang is not None else 1
        least = amounts_of(shape)
        self.amounts = least
        for _ in range(self.size - 1):
            self.amounts = self.amounts.plus(least)
        self.slots = self._may_go(rules, now)
        self._gangs = self._members()
        self.allowed = np.ones(len(self.grid.nodes), np.bool_) if allowed is None else allowed

    def _may_go(self, rules: Preemption, now: float) -> Ints:
        held, quotas, tenant = self.allocations, self.quotas, self.queued.tenant
        standing = quotas.standing(tenant, self.queued.owner, self.amounts)
        claims = quotas.bounded(tenant) and standing in (QuotaDecision.OWN, QuotaDecision.LENT)
        borrows = np.array([name != tenant and quotas.borrows(name) for name in held.tenants], np.bool_)
        open_to_all = np.array([name == tenant or not quotas.bounded(name) for name in held.tenants], np.bool_)
        there = held.node >= 0
        may = there & held.preemptible & (held.at + rules.guaranteed_s <= now)
        for attempt in rules.spared:
            if attempt in held.slot:
                may[held.slot[attempt]] = False
        if not may.any():
            return np.empty(0, np.int64)
        less = held.priority < self.queued.priority
        may &= (less & (open_to_all | borrows)[held.tenant]) | (borrows[held.tenant] if claims else False)
        stay = np.unique(held.gang[there & ~may & (held.gang >= 0)])
        return np.flatnonzero(may & ~np.isin(held.gang, stay))

    # --- units --------------------------------------------------------------------------------------------------------

    def _members(self) -> dict[int, list[int]]:
        """The evictable slots of each gang."""
        gangs: dict[int, list[int]] = {}
        for slot in self.slots[self.allocations.gang[self.slots] >= 0].tolist():
            gangs.setdefault(int(self.allocations.gang[slot]), []).append(slot)
        return gangs

    def _unit(self, slot: int) -> EvictionUnit:
        """The unit that is evicted with a slot."""
        slots = self._gangs.get(int(self.allocations.gang[slot]), [slot])
        held = [one for one in (self.allocations.held[at] for at in slots) if one is not None]
        return EvictionUnit(
            tuple(slots), tuple(held), max(one.priority for one in held), max(one.allocation.at for one in held)
        )

    def _units_on(self, number: int) -> list[EvictionUnit]:
        units = {self._unit(slot) for slot in self.slots[self.allocations.node[self.slots] == number].tolist()}
        return sorted(units, key=order_of)

    def _rows(self, units: Collection[EvictionUnit], number: int) -> Ints:
        """[units, W]: the row that each unit frees on a node."""
        rows = np.zeros((len(units), self.allocations.rows.shape[1]), np.int64)
        for index, unit in enumerate(units):
            for slot in unit.slots:
                if self.allocations.node[slot] == number:
                    rows[index] += self.allocations.rows[slot]
        return rows

    def legal(self, units: Collection[EvictionUnit]) -> bool:
        """True if no tenant but the request's loses part of its own quota by the eviction of all of these."""
        tenants = {held.tenant for unit in units for held in unit.held} - {self.queued.tenant}
        return all(self._keeps_its_own(name, units) for name in tenants if self.quotas.bounded(name))

    def _keeps_its_own(self, tenant: str, units: Collection[EvictionUnit]) -> bool:
        """True if the last of them can be evicted while the tenant still borrows."""
        theirs = [[held for held in unit.held if held.tenant == tenant] for unit in units]
        theirs = [held for held in theirs if held]
        if len(theirs) == 1:
            return self.quotas.borrows(tenant)
        with self.quotas.without(held for some in theirs for held in some):
            return any(self._borrows_with(tenant, last) for last in theirs)

    def _borrows_with(self, tenant: str, last: list[Held]) -> bool:
        for held in last:
            self.quotas.take(held)
        borrows = self.quotas.borrows(tenant)
        for held in last:
            self.quotas.give(held)
        return borrows

    # --- the search ---------------------------------------------------------------------------------------------------

    def run(self) -> PreemptionProposal | None:
        """The eviction, or None. If a quota needs a victim, room is first searched where such victims are."""
        every = self.slots
        if not self._starts(()):
            self.slots = self._for_both()
            found = self._found()
            if found is not None:
                return found
        self.slots = every
        return self._found()

    def _for_both(self) -> Ints:
        """The slots whose eviction also helps with the quota that refuses."""
        if not len(self.slots):
            return self.slots
        mine, names = self.queued.tenant, self.allocations.tenants
        if self.quotas.standing(mine, self.queued.owner, self.amounts) is QuotaDecision.LENT:
            helps = np.array([name != mine and self.quotas.borrows(name) for name in names], np.bool_)
        else:
            helps = np.array([name == mine for name in names], np.bool_)
        return np.asarray(self.slots[helps[self.allocations.tenant[self.slots]]], np.int64)

    def _found(self) -> PreemptionProposal | None:
        nodes = np.flatnonzero(self.allowed)
        free = fits_in(self.grid, self.shape, nodes, free_rows(self.grid, nodes))
        ready = nodes[free].tolist()[: self.size]
        found: list[tuple[int, tuple[EvictionUnit, ...]]] = [(number, ()) for number in ready]
        if len(found) < self.size:
            found += self._make_room(nodes[~free], self.size - len(found))
        if len(found) < self.size:
            return None
        numbers = tuple(number for number, _ in found)
        units = self._for_quota({unit for _, some in found for unit in some})
        if units is None or not self.legal(units):
            return None
        return self._eviction(numbers, self._least(numbers, units))

    def _make_room(self, nodes: Ints, wanted: int) -> list[tuple[int, tuple[EvictionUnit, ...]]]:
        """The nodes on which room for the shape costs least, with their units; as many as wanted, if possible."""
        nodes = nodes[np.isin(nodes, self.allocations.node[self.slots])]
        rows = free_rows(self.grid, nodes) + self.allocations.sum(self.slots)[nodes]
        nodes = nodes[fits_in(self.grid, self.shape, nodes, rows)]
        if len(nodes) < wanted:
            return []
        if wanted == 1:
            one = self._one_alone(nodes)
            if one is not None:
                return [one]
        found = []
        for number in self._most_hopeful(nodes)[: wanted + NODES_TRIED].tolist():
            units = self._units_on(number)
            least = cheapest_on(self.grid, self.shape, number, units, self._rows(units, number), self.legal)
            if least is not None:
                found.append((number, least))
        found.sort(key=lambda pair: (cost_of(pair[1]), pair[0]))
        return found[:wanted]

    def _one_alone(self, nodes: Ints) -> tuple[int, tuple[EvictionUnit, ...]] | None:
        """The best unit whose eviction alone is enough."""
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
        held = self.allocations.held[slot]
        return "" if held is None else held.allocation.attempt_id

    def _most_hopeful(self, nodes: Ints) -> Ints:
        """The nodes, ordered by the likely number of victims: missing devices, CPUs and memory over the largest
        evictable.
        """
        held, devices = self.allocations, self.grid.kind.shape[1]
        most = np.ones((len(self.grid.nodes), 3), np.int64)
        touched = np.count_nonzero(held.rows[self.slots][:, 2 : 2 + devices], axis=1)
        sizes = np.column_stack((held.rows[self.slots][:, :2], touched))
        np.maximum.at(most, held.node[self.slots], sizes)
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

    # --- quotas, and what was too much --------------------------------------------------------------------------------

    def _starts(self, units: Collection[EvictionUnit]) -> bool:
        """True if quotas let the request start once these are gone."""
        with self.quotas.without(held for unit in units for held in unit.held):
            return self.quotas.standing(self.queued.tenant, self.queued.owner, self.amounts).starts

    def _for_quota(self, units: set[EvictionUnit]) -> set[EvictionUnit] | None:
        """These, and as many more as the quotas need; None if that does not help."""
        if self._starts(units):
            return units
        units = set(units)
        more = sorted({self._unit(slot) for slot in self._for_both().tolist()} - units, key=order_of)
        with ExitStack() as gone:
            gone.enter_context(self.quotas.without(held for unit in units for held in unit.held))
            for unit in more:
                if len(units) > MOST_FOR_QUOTA or not self._may_lose(unit):
                    continue
                units.add(unit)
                gone.enter_context(self.quotas.without(unit.held))
                if self.quotas.standing(self.queued.tenant, self.queued.owner, self.amounts).starts:
                    return units
        return None

    def _may_lose(self, unit: EvictionUnit) -> bool:
        """True if all tenants of a unit, except the request's, that have their own quota hold more than it now."""
        tenants = {held.tenant for held in unit.held} - {self.queued.tenant}
        return all(self.quotas.borrows(name) for name in tenants if self.quotas.bounded(name))

    def _least(self, numbers: tuple[int, ...], units: set[EvictionUnit]) -> list[EvictionUnit]:
        """The units without superfluous ones; the most important unit is the first to be kept."""
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

    def _eviction(self, numbers: tuple[int, ...], units: list[EvictionUnit]) -> PreemptionProposal:
        victims = [Victim(held, self._reason(held)) for unit in units for held in unit.held]
        return PreemptionProposal(numbers, tuple(victims))

    def _reason(self, held: Held) -> Reason:
        queued, is_session = self.queued, held.kind == "session"
        if held.priority < queued.priority:
            return attempts.Preempted(by_owner=queued.owner, by_kind=queued.kind, is_session=is_session)
        return attempts.Reclaimed(tenant=queued.tenant, is_session=is_session)
