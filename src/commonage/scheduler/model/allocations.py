"""Current allocations as arrays, one slot for each attempt: their ends, the rows they free, their evictability.

The pass keeps it in step with the grid: call `take` and `give` on both. Read by backfill, reservations
and preemption. Free room and permission to start are decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from commonage.domain.tenants import Amounts
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.groups import Groups
from commonage.scheduler.model.shapes import AllocatedRequest, Bools, Floats, Ints
from commonage.scheduler.model.space import row_of, width

NEVER_ENDS = np.inf


class AllocationTable:
    """Arrays by slot [S]; call `sync()` before reading. A slot whose `node` is -1 is empty, or on an unknown node.

    `rows` [S, W] is the room each takes on its node (see space.py), `ends_at` the end by its time limit (inf: never),
    `at` the start, `priority`, `preemptible`, `tenant` the number in `tenants`, `gang` that of its gang (-1: none),
    `group` that of its kind, environment and owner in `groups`. `amounts` [S, 3] are its CPUs, memory and thousandths
    of GPUs, wherever its node is.
    """

    def __init__(self, grid: Grid, allocated: Iterable[AllocatedRequest] = ()) -> None:
        self.grid = grid
        self.slot: dict[str, int] = {}
        self.tenants: dict[str, int] = {}
        self.groups = Groups()
        self._gang_number: dict[str, int] = {}
        self.allocated: list[AllocatedRequest | None] = []
        self._empty: list[int] = []
        self._shape_arrays(64)
        self._epoch = grid.epoch
        for request in allocated:
            self.take(request)

    def _shape_arrays(self, slots: int) -> None:
        self.node: Ints = np.full(slots, -1, np.int64)
        self.rows: Ints = np.zeros((slots, width(self.grid)), np.int64)
        self.ends_at: Floats = np.full(slots, NEVER_ENDS)
        self.at: Floats = np.zeros(slots)
        self.priority: Ints = np.zeros(slots, np.int64)
        self.preemptible: Bools = np.zeros(slots, np.bool_)
        self.tenant: Ints = np.zeros(slots, np.int64)
        self.gang: Ints = np.full(slots, -1, np.int64)
        self.group: Ints = np.zeros(slots, np.int64)
        self.amounts: Ints = np.zeros((slots, 3), np.int64)

    def __iter__(self) -> Iterator[AllocatedRequest]:
        return (request for request in self.allocated if request is not None)

    def __len__(self) -> int:
        return len(self.slot)

    def take(self, allocated: AllocatedRequest) -> None:
        attempt = allocated.allocation.attempt_id
        slot = self.slot.get(attempt)
        if slot is None:
            slot = self._empty.pop() if self._empty else len(self.allocated)
            if slot == len(self.allocated):
                self.allocated.append(None)
            self.slot[attempt] = slot
        self.allocated[slot] = allocated
        if slot >= len(self.node):
            self._fill()
        else:
            self._write(slot, allocated)

    def give(self, attempt_id: str) -> AllocatedRequest | None:
        """Remove an attempt that ended; returns its allocation, None if it was unknown."""
        slot = self.slot.pop(attempt_id, None)
        if slot is None:
            return None
        gone, self.allocated[slot] = self.allocated[slot], None
        self.node[slot] = -1
        self._empty.append(slot)
        return gone

    def sync(self) -> None:
        """Follow a renumbering of nodes or devices in the grid."""
        if self._epoch != self.grid.epoch:
            self._fill()

    def _fill(self) -> None:
        self._shape_arrays(max(64, 2 * len(self.allocated)))
        self._epoch = self.grid.epoch
        for slot, allocated in enumerate(self.allocated):
            if allocated is not None:
                self._write(slot, allocated)

    def _write(self, slot: int, allocated: AllocatedRequest) -> None:
        self.node[slot] = self.grid.number.get(allocated.allocation.node_key, -1)
        row = row_of(self.grid, allocated.allocation)
        if len(row) == self.rows.shape[1]:  # otherwise the grid has grown, and sync() runs before anything reads
            self.rows[slot] = row
        self.ends_at[slot] = NEVER_ENDS if allocated.ends_at is None else allocated.ends_at
        self.at[slot] = allocated.allocation.at
        self.priority[slot] = allocated.priority
        self.preemptible[slot] = allocated.preemptible
        self.tenant[slot] = self.tenants.setdefault(allocated.tenant, len(self.tenants))
        self.group[slot] = self.groups.number(allocated.kind, allocated.environment, allocated.owner)
        amounts = Amounts.of(allocated.allocation)
        self.amounts[slot] = amounts.cpus_milli, amounts.memory_mib, amounts.gpu_milli
        self.gang[slot] = -1
        if allocated.gang is not None:
            self.gang[slot] = self._gang_number.setdefault(allocated.gang, len(self._gang_number))

    def sum(self, slots: Ints) -> Ints:
        """[N, W]: the sum of these slots on each node. None of them may be empty."""
        total = np.zeros((len(self.grid.nodes), width(self.grid)), np.int64)
        if len(slots):
            order = slots[np.argsort(self.node[slots], kind="stable")]
            nodes, first = np.unique(self.node[order], return_index=True)
            total[nodes] = np.add.reduceat(self.rows[order], first, axis=0)
        return total

    def ended_by(self, at: float) -> Ints:
        self.sync()
        return self.sum(np.flatnonzero((self.node >= 0) & (self.ends_at <= at)))

    def after(self, at: float, nodes: Ints) -> list[AllocatedRequest]:
        """The allocations on these nodes that may still run then."""
        self.sync()
        late = np.flatnonzero((self.node >= 0) & (self.ends_at > at) & np.isin(self.node, nodes))
        return [allocated for allocated in (self.allocated[slot] for slot in late.tolist()) if allocated is not None]
