"""Wait reasons: finds why the pass did not start a request. Filters, quota, reservations, promises.

Called by explain.py with the finished pass. Nodes with the same refusal form one shortfall, the closest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from commonage.domain.nodes import NodeKey, NodeState
from commonage.domain.reasons import Reason, waiting
from commonage.scheduler.fit.filters import FILTERS, Filter, NodeReady, matching, usable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Bools, Ints, QueuedRequest, Shape
from commonage.scheduler.plan import Plan, SchedulingPass
from commonage.scheduler.snapshot import Snapshot

Found = list[tuple[int, Reason]]  # (closest node, shortfall there) of each group of nodes


def shortfalls(snapshot: Snapshot, outcome: SchedulingPass | Plan, queued: QueuedRequest) -> tuple[Reason, ...]:
    """The shortfalls, one for each kind; empty for a request that came after the plan and fits."""
    grid = snapshot.grid
    if not grid.nodes:
        return (waiting.NoNodes(),)
    shape = grid.shape(queued.request)
    candidates = grid.at_sites(shape, np.arange(len(grid.nodes)))
    if not candidates.any():
        return (waiting.NoCandidateSite(tenant=queued.tenant),)
    members = 1 if queued.gang is None else len(snapshot.queue.gang(queued.gang))
    if members < queued.gang_size:
        return (waiting.GangIncomplete(size=queued.gang_size, queued=members),)
    over = over_quota(snapshot, queued, shape)
    if over is not None:
        return (over,)
    found = NodeRefusals(snapshot, outcome, queued)
    if np.count_nonzero(found.startable) >= queued.gang_size:
        if snapshot.sites.choose(found.startable, queued.gang_size).any():
            came_later = _place(snapshot, outcome, queued.workload_id) == len(outcome.order)
            return () if came_later else (waiting.ResourcesFree(),)
        return (waiting.InsufficientNodesAtSite(size=queued.gang_size),)
    return found.of(candidates)


class NodeRefusals:
    """Why the request does not start on nodes, quotas of the whole tenant aside. `startable` [N]: where it could."""

    def __init__(self, snapshot: Snapshot, outcome: SchedulingPass | Plan, queued: QueuedRequest) -> None:
        self._snapshot, self._queued = snapshot, queued
        self._shape = shape = snapshot.grid.shape(queued.request)
        self._fit = snapshot.grid.fits(shape, np.arange(len(snapshot.grid.nodes)))
        self._within = _within_quota(snapshot, queued, shape, self._fit)
        self._withheld = _Withheld(snapshot, outcome, queued)
        self._nearest = _by_distance(snapshot.grid, shape, self._fit)
        self.startable = outcome.backfill.startable_nodes(queued, shape, self._within)

    def of(self, some: Bools) -> tuple[Reason, ...]:
        """The reasons on `some` [N] nodes, the one for the nearest node first; empty if the members fit there."""
        grid, rooms = self._snapshot.grid, int(np.count_nonzero(self.startable & some))
        if rooms >= self._queued.gang_size:
            return ()
        nodes = self._nearest[some[self._nearest]]
        by_node, left = _refused(grid, self._shape, nodes[~self.startable[nodes]], len(nodes))
        by_node += self._withheld.found(left, self._within)
        place = {number: index for index, number in enumerate(nodes.tolist())}
        reasons = [reason for _, reason in sorted(by_node, key=lambda pair: place[pair[0]])]
        if rooms:
            reasons = [waiting.InsufficientNodes(size=self._queued.gang_size, nodes=rooms), *reasons]
        return tuple(reasons)


def might_start(outcome: SchedulingPass, queued: QueuedRequest, size: int) -> bool:
    """Whether a request of `size` members might start next to the result of the pass: worth a trial pass."""
    snapshot = outcome.snapshot
    shape = snapshot.grid.shape(queued.request)
    if over_quota(snapshot, queued, shape) is not None:
        return False
    fit = snapshot.grid.fits(shape, np.arange(len(snapshot.grid.nodes)))
    may = outcome.backfill.startable_nodes(queued, shape, _within_quota(snapshot, queued, shape, fit))
    return int(np.count_nonzero(may)) >= size


# --- quotas -----------------------------------------------------------------------------------------------------------


def over_quota(snapshot: Snapshot, queued: QueuedRequest, shape: Shape) -> Reason | None:
    """The quota reason for the request with its gang. Quotas do not count requests that fit into a reservation."""
    if not snapshot.rules.tenants or snapshot.reserved.own_nodes(queued, shape) is not None:
        return None
    return snapshot.quotas.reason(queued, shape, max(1, queued.gang_size))


def _within_quota(snapshot: Snapshot, queued: QueuedRequest, shape: Shape, fit: Bools) -> Bools:
    within = (
        snapshot.quotas.nodes_within_quota(snapshot.grid, queued, shape, queued.gang_size)
        if snapshot.rules.tenants
        else None
    )
    reserved = None if within is None else snapshot.reserved.own_nodes(queued, shape)
    if within is not None and reserved is not None:
        within = within | reserved
    return fit.copy() if within is None else fit & within


# --- nodes ------------------------------------------------------------------------------------------------------------


def _by_distance(grid: Grid, shape: Shape, fit: Bools) -> Ints:
    """Nodes ordered by: it fits, it fits when empty, has such a device, is ready; then the most free memory first."""
    nodes = np.arange(len(grid.nodes))
    free = grid.memory if shape.request.gpu is None else np.where(usable(grid, shape, nodes), grid.free_mib, -1)
    most = free if free.ndim == 1 else free.max(axis=1, initial=-1)
    return np.lexsort((-most, ~grid.ready, most < 0, ~grid.fits_empty(shape, nodes), ~fit))


def _refused(grid: Grid, shape: Shape, nodes: Ints, total: int) -> tuple[Found, Ints]:
    """(refusals of filters, the nodes that no filter refuses). `total` is the number of nodes considered."""
    refusals: Found = []
    left = nodes
    for condition in FILTERS:
        passes = condition.passes(grid, shape, left)
        refused, left = left[~passes], left[passes]
        for alike in _groups_of(condition, grid, refused):
            shortfall = condition.refusal(grid, shape, alike[0])
            if shortfall is not None:  # always: the filter has just refused this node
                refusals.append((alike[0], replace(shortfall, nodes=len(alike), total=total)))
    return refusals, left


def _groups_of(refusing: Filter, grid: Grid, refused: Ints) -> Iterable[list[int]]:
    """Groups of refused nodes that share one reason; unschedulable nodes are grouped by state."""
    numbers: list[int] = refused.tolist()
    if not numbers or not isinstance(refusing, NodeReady):
        return [numbers] if numbers else []
    groups: defaultdict[NodeState, list[int]] = defaultdict(list)
    for number in numbers:
        groups[grid.nodes[number].state].append(number)
    return groups.values()


class _Withheld:
    """Explains why a request may not start where it fits: a quota, or capacity withheld for others."""

    def __init__(self, snapshot: Snapshot, outcome: SchedulingPass | Plan, queued: QueuedRequest) -> None:
        self._snapshot, self._backfill, self._now, self._queued = snapshot, outcome.backfill, outcome.now, queued
        self._reserved = snapshot.reserved.open_nodes(queued, snapshot.grid.shape(queued.request))
        self._reserving: defaultdict[int, list[str]] = defaultdict(list)
        for number, name, _, _ in snapshot.reserved.windows():
            self._reserving[number].append(name)
        self._promised: dict[NodeKey, float] = {}  # by node: the first promised start of a request ahead
        mine = _place(snapshot, outcome, queued.workload_id)
        for promise in outcome.promises.values():
            is_ahead = _place(snapshot, outcome, promise.workload_id) < mine
            if promise.at is not None and is_ahead and not self._is_own_gang(promise.workload_id):
                for allocation in promise.allocations:
                    self._promised[allocation.node_key] = min(
                        promise.at, self._promised.get(allocation.node_key, promise.at)
                    )

    def _is_own_gang(self, workload_id: str) -> bool:
        queue, gang = self._snapshot.queue, self._queued.gang
        slot = queue.slot(workload_id)
        other = queue.queued_requests[slot] if gang is not None and slot >= 0 else None
        return other is not None and other.gang == gang

    def found(self, left: Ints, within: Bools) -> Iterator[tuple[int, Reason]]:
        """(closest node, reason) of each group of these nodes; `within` [N]: those within quota."""
        grid, groups = self._snapshot.grid, defaultdict[waiting.FreeButKept, list[int]](list)
        over_quota = waiting.TenantQuotaExceededThere(tenant=self._queued.tenant)
        for number in left.tolist():
            groups[self._kept_for(number) if within[number] else over_quota].append(number)
        for kept, (first, *others) in groups.items():
            free = _free(grid, self._queued, first)
            yield first, replace(kept, node=grid.label(first), nodes=1 + len(others), free=free)

    def _kept_for(self, number: int) -> waiting.FreeButKept:
        if self._reserved is not None and not self._reserved[number]:
            return self._reservation(number)
        if self._backfill.claims.is_reserved_for_head(number):
            return waiting.ReservedForHeadOfQueue()
        at = self._promised.get(self._snapshot.grid.nodes[number].key, np.inf)
        if at <= self._now:
            return waiting.PreemptingForOthers()
        if at < self._backfill.end_if_started(self._queued):
            return waiting.PromisedToOthers(starts_in_s=float(at - self._now))
        first = float(self._snapshot.profiles.first_ends()[number])
        return waiting.KeptForQueue(for_s=first - self._now if np.isfinite(first) else None)

    def _reservation(self, number: int) -> waiting.FreeButKept:
        """The reservation on the node that has begun, else the one that begins first."""
        named = {reservation.id: reservation for reservation in self._snapshot.rules.reservations}
        here = [named[name] for name in self._reserving[number] if name in named]
        if not here:
            return waiting.ReservedForOthers(tenant="")
        reservation = min(
            here, key=lambda reservation: (reservation.starts_at > self._now, reservation.starts_at, reservation.id)
        )
        begins = reservation.starts_at > self._now
        own = reservation.tenant == self._queued.tenant  # of other tenants only the time is shown
        return waiting.ReservedForOthers(
            tenant=reservation.tenant if own else "",
            user=reservation.owner if own else None,
            title=reservation.title if own else "",
            begins_in_s=reservation.starts_at - self._now if begins else None,
            ends_in_s=None if begins else reservation.ends_at - self._now,
        )


def _place(snapshot: Snapshot, outcome: SchedulingPass | Plan, workload_id: str) -> int:
    """Position in the order of the pass, from 0; behind all others if it came later."""
    slot, order = snapshot.queue.slot(workload_id), outcome.order
    place = order.place(slot) if len(order) else 0
    return place if slot >= 0 and len(order) and order.slots[place] == slot else len(order)


def _free(grid: Grid, queued: QueuedRequest, number: int) -> waiting.Resources:
    shape = grid.shape(queued.request)
    if queued.request.gpu is None:
        return waiting.Resources(cpus_milli=int(grid.cpus[number]), memory_mib=int(grid.memory[number]))
    if queued.request.gpu.whole:
        return waiting.Resources(gpus=int(np.count_nonzero(grid.devices_fit(shape, np.array([number])))))
    devices = [device for device, _ in matching(grid, shape, number)]
    return waiting.Resources(gpu_memory_mib=int(grid.free_mib[number, devices].max()))
