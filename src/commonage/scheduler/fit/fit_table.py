"""The table of request classes and the nodes that they fit on: a request that fits nowhere costs a pass nothing.

The snapshot keeps one row for each request class of the queue; only changed nodes are compared again. `choose_nodes`
is the pass's last step, after quotas, reservations and backfill: the members of a gang get different nodes.
"""

from __future__ import annotations

import numpy as np

from commonage.domain.requests import Request
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import NEVER, Bools, Floats, Ints, Shape
from commonage.scheduler.queue.fair_share import Capacity

MAX_AT_ONCE = 1 << 20  # comparisons in one step, so that a step takes only some MiB


class FitTable:
    """Tables by request class and node [S, N]: `now` where it fits next to the allocations, `empty` where it fits on an
    empty node. `count` [S] is the number of nodes on which it fits now. Call `refresh()` before reading.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.shapes: list[Shape | None] = []
        self._requests: list[Request | None] = []
        self._epoch, self._at, self._puts = -1, 0, -1
        self._fresh: set[int] = set()
        self._size(64)

    def _size(self, request_classes: int) -> None:
        grid = self._grid
        self.now: Bools = np.zeros((request_classes, len(grid.nodes)), np.bool_)
        self.empty: Bools = np.zeros((request_classes, len(grid.nodes)), np.bool_)
        self.count: Ints = np.zeros(request_classes, np.int64)
        self._cpus: Ints = np.full(request_classes, NEVER, np.int64)
        self._memory: Ints = np.full(request_classes, NEVER, np.int64)
        self._devices: Ints = np.zeros(request_classes, np.int64)
        self._need_mib: Ints = np.full((request_classes, len(grid.kinds) + 1), NEVER, np.int64)
        self._need_milli: Ints = np.full((request_classes, len(grid.kinds) + 1), NEVER, np.int64)
        self._on_full_disk: Bools = np.zeros(request_classes, np.bool_)
        self._at_sites: Bools = np.ones((request_classes, len(grid.site_names)), np.bool_)
        self._is_restricted = False  # some class does not run at all sites
        self._labelled: set[int] = set()  # request classes that want labels: `_carried` [S, N] says where they are
        self._carried: Bools = np.ones((request_classes, len(grid.nodes)), np.bool_)
        self._alone: set[int] = set()  # request classes with conditions beyond the tables
        self._fresh = {request_class for request_class, request in enumerate(self._requests) if request is not None}

    def put(self, request_class: int, request: Request) -> None:
        while len(self._requests) <= request_class:
            self._requests.append(None)
            self.shapes.append(None)
        if self._requests[request_class] != request:
            self._requests[request_class] = request
            self._fresh.add(request_class)

    def shape(self, request_class: int) -> Shape:
        shape = self.shapes[request_class]
        assert shape is not None  # refresh() made all shapes
        return shape

    def shares(self, capacity: Capacity) -> Floats:
        """[S]: the dominant share of each class, by the least it takes on any device; undefined for unused classes."""
        least = self._need_milli.min(axis=1)
        parts = (
            self._cpus / capacity.cpus_milli,
            self._memory / capacity.memory_mib,
            np.where(least < NEVER, least, 0) * self._devices / capacity.gpu_milli,
        )
        return np.where(self._cpus < NEVER, np.maximum.reduce(parts), 0.0)

    def refresh(self) -> None:
        grid = self._grid
        if self._epoch != grid.epoch or len(self._requests) > len(self._cpus):
            self._size(max(64, 2 * len(self._requests)))
            self._epoch, self._at, self._puts = grid.epoch, grid.changes, grid.puts
        everybody = np.flatnonzero(self._cpus < NEVER)
        if self._puts != grid.puts:
            relabelled = grid.relabelled_since(self._puts)
            for request_class in self._labelled if len(relabelled) else ():
                self._carried[request_class, relabelled] = grid.has_labels(self.shape(request_class), relabelled)
            self._compute(self.empty, everybody, grid.put_since(self._puts), empty=True)
            self._puts = grid.puts
        if self._at != grid.changes:
            stale = grid.changed_since(self._at)
            self._at = grid.changes
            self.count -= np.count_nonzero(self.now[:, stale], axis=1)
            self._compute(self.now, everybody, stale, empty=False)
            self.count += np.count_nonzero(self.now[:, stale], axis=1)
        if self._fresh:
            self._take_in(sorted(self._fresh))

    def _take_in(self, fresh: list[int]) -> None:
        self._fresh, nodes = set(), np.arange(len(self._grid.nodes))
        for request_class in fresh:
            request = self._requests[request_class]
            if request is None:
                continue
            shape = self.shapes[request_class] = self._grid.shape(request)
            self._cpus[request_class], self._memory[request_class], self._devices[request_class] = (
                shape.cpus_milli,
                shape.memory_mib,
                shape.devices,
            )
            self._need_mib[request_class], self._need_milli[request_class] = shape.need_mib, shape.need_milli
            self._on_full_disk[request_class] = request.on_full_disk
            if request.sites is not None:
                self._at_sites[request_class], self._is_restricted = self._grid.among(request.sites), True
            else:
                self._at_sites[request_class] = True
            if any(name != "site" or request.sites is None for name, _ in request.labels):
                self._labelled.add(request_class)
                self._carried[request_class] = self._grid.has_labels(shape, nodes)
            else:
                self._labelled.discard(request_class)
                self._carried[request_class] = True
            special = request.one_numa and shape.devices > 1
            (self._alone.add if special else self._alone.discard)(request_class)
        request_classes = np.array(fresh, np.int64)
        self._compute(self.now, request_classes, nodes, empty=False)
        self._compute(self.empty, request_classes, nodes, empty=True)
        self.count[request_classes] = np.count_nonzero(self.now[request_classes], axis=1)

    def _compute(self, table: Bools, request_classes: Ints, nodes: Ints, *, empty: bool) -> None:
        if not len(request_classes) or not len(nodes):
            return
        step = max(1, MAX_AT_ONCE // (len(request_classes) * max(1, self._grid.kind.shape[1])))
        for first in range(0, len(nodes), step):
            some = nodes[first : first + step]
            table[np.ix_(request_classes, some)] = self._compare(request_classes, some, empty)
            for request_class in self._alone.intersection(request_classes.tolist()):
                fit = self._grid.fits_empty if empty else self._grid.fits
                table[request_class, some] = fit(self.shape(request_class), some)

    def _compare(self, request_classes: Ints, nodes: Ints, empty: bool) -> Bools:
        grid = self._grid
        cpus, memory = (grid.cpus_total, grid.memory_total) if empty else (grid.cpus, grid.memory)
        fit: Bools = grid.ready[nodes] | (self._on_full_disk[request_classes][:, None] & grid.disk_pressure[nodes])
        if self._is_restricted:
            fit &= self._at_sites[request_classes][:, grid.site[nodes]]
        if self._labelled:
            fit &= self._carried[np.ix_(request_classes, nodes)]
        fit &= self._cpus[request_classes][:, None] <= cpus[nodes]
        fit &= self._memory[request_classes][:, None] <= memory[nodes]
        with_devices = np.flatnonzero(self._devices[request_classes])
        if len(with_devices):
            some, kind = request_classes[with_devices], grid.kind[nodes]
            mib = grid.total_mib[nodes] if empty else grid.free_mib[nodes]
            enough = mib >= self._need_mib[some][:, kind]
            milli = np.full_like(mib, 1000) if empty else grid.free_milli[nodes]
            enough &= milli >= self._need_milli[some][:, kind]
            fit[with_devices] &= np.count_nonzero(enough, axis=2) >= self._devices[some][:, None]
        return fit


NEAR_TIE = 0.01
"""Nodes are nearly equal within this part of the range from the best node to the worst. More would override the policy.
"""


def choose_nodes(costs: Floats, count: int, runs_environment: Bools) -> tuple[int, ...] | None:
    """The numbers of `count` different nodes, the cheapest first; None if not all members can start.

    `costs` [N] are inf where no member may start. Near ties prefer nodes that run the environment [N]: its image is
    there.
    """
    if np.count_nonzero(np.isfinite(costs)) < count:
        return None
    if count == 1:  # most requests
        return (cheapest_node(costs, runs_environment),)
    left, chosen = costs.copy(), []
    for _ in range(count):
        chosen.append(cheapest_node(left, runs_environment))
        left[chosen[-1]] = np.inf
    return tuple(chosen)


def cheapest_node(costs: Floats, runs_environment: Bools) -> int:
    """The cheapest near tie that runs the environment, else the cheapest node. At least one cost must be finite."""
    best = int(np.argmin(costs))
    if runs_environment[best] or not runs_environment.any():
        return best
    worst = costs.max(initial=-np.inf, where=np.isfinite(costs))
    near = np.flatnonzero(runs_environment & (costs <= costs[best] + NEAR_TIE * (worst - costs[best])))
    return int(near[np.argmin(costs[near])]) if len(near) else best
