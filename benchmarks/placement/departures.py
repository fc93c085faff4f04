"""The departure experiment: workloads arrive, wait for a place, run, and end, at a steady load.

The published experiment has no departures. Arrivals are a Poisson process of random workloads of a list; durations are
exponential. A workload waits until it fits; the longest waiting that fits starts first, and none is held for another.
Called by the benchmark `placement`.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean

import numpy as np

from benchmarks.placement.inflation import gpu_milli
from benchmarks.placement.lists import Scenario
from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Allocation
from commonage.domain.requests import Request
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Bools, Shape
from commonage.scheduler.policies import Policy
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import Maker

HOURS = 5.0
"""The end of the experiment. A workload runs for an hour on average."""
WARM_UP_HOURS = 2.0
"""Nothing is measured before: the cluster is empty at first."""
NODES = 150
"""The experiment runs on a random sample of this number of nodes, because it has many more arrivals."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Figures after the warm-up.

    `allocation`: GPUs in use in per cent of all, mean over time. `wasted`: GPU-hours that were idle while waiting
    workloads requested them, in per cent of all GPU-hours. `wait_min`: mean wait in minutes; workloads that still wait
    count with their wait until the end.
    """

    allocation: float
    wasted: float
    wasted_gpu_hours: float
    wait_min: float

    @classmethod
    def mean(cls, several: Sequence[Steady]) -> Steady:
        return cls(*(fmean(getattr(one, field.name) for one in several) for field in fields(cls)))


def run_steady(scenario: Scenario, make: Maker, seed: int, load_percent: int) -> Steady:
    """`load_percent`: GPU-hours requested for each hour, in per cent of all GPUs. Workloads that fit on no empty node
    are left out. Raises InvalidInput if nothing remains.
    """
    chance = random.Random(seed)
    nodes = list(scenario.nodes)
    chance.shuffle(nodes)
    grid = Grid(nodes)
    everywhere = np.arange(len(nodes))
    fits = {one: bool(grid.fits(grid.shape(one), everywhere).any()) for one in set(scenario.workloads)}
    workloads = [one for one in scenario.workloads if fits[one]]
    capacity = 1000 * sum(len(node.report.devices) for node in nodes)
    asked = sum(map(gpu_milli, workloads))
    if not capacity or not asked:
        raise InvalidInput("nothing to measure: no node has a GPU, or no workload requests one", field="list")
    every_hours = asked / len(workloads) / (capacity * load_percent / 100)
    cluster = _Cluster(grid, make(grid, WorkloadMix.of(workloads), seed), workloads)
    arrives = chance.expovariate(1 / every_hours)
    while min(arrives, cluster.next_end()) < HOURS:
        if arrives <= cluster.next_end():
            cluster.arrive(arrives, chance.choice(workloads), chance.expovariate(1.0))
            arrives += chance.expovariate(1 / every_hours)
        else:
            cluster.end_one()
    return cluster.measured(capacity)


_NONE = np.iinfo(np.int64).max  # nothing waits


class _Cluster:
    """The cluster at one time: what runs, what waits, and the integrals since the warm-up."""

    def __init__(self, grid: Grid, policy: Policy, workloads: Sequence[Request]) -> None:
        self._grid, self._policy = grid, policy
        self._shapes = {one: index for index, one in enumerate(dict.fromkeys(workloads))}
        self._table = _Needs([grid.shape(one) for one in self._shapes])
        self._waiting: list[deque[tuple[int, float, float]]] = [deque() for _ in self._shapes]  # number, since, hours
        self._first = np.full(len(self._shapes), _NONE)  # the number of the longest waiting of each shape
        self._running: list[tuple[float, int, Allocation, int]] = []  # end, number, allocation, requested thousandths
        self._number = 0
        self._now = 0.0
        self._used = self._wanted = 0
        self._used_hours = self._wasted_hours = 0.0
        self._waits: list[float] = []
        self._capacity = 1000 * int((grid.kind >= 0).sum())

    def next_end(self) -> float:
        return self._running[0][0] if self._running else HOURS

    def arrive(self, now: float, request: Request, hours: float) -> None:
        self._advance(now)
        shape = self._grid.shape(request)
        self._policy.arrived(shape)
        self._number += 1
        costs = self._policy.costs(shape)
        node = int(costs.argmin())
        if costs[node] < np.inf:
            self._start(shape, node, self._number, now, hours)
            return
        index = self._shapes[request]
        self._waiting[index].append((self._number, now, hours))
        self._first[index] = self._waiting[index][0][0]
        self._wanted += gpu_milli(request)

    def end_one(self) -> None:
        """End the next workload, and start on its node the longest waiting that fit there."""
        now, _, allocation, milli = heapq.heappop(self._running)
        self._advance(now)
        self._grid.give(allocation)
        self._used -= milli
        node = self._grid.number[allocation.node_key]
        while True:
            order = np.where(self._table.fit(self._grid, node), self._first, _NONE)
            index = int(order.argmin())
            if order[index] == _NONE:
                return
            queue = self._waiting[index]
            number, since, hours = queue.popleft()
            self._first[index] = queue[0][0] if queue else _NONE
            shape = self._table.shapes[index]
            self._wanted -= gpu_milli(shape.request)
            self._start(shape, node, number, since, hours)

    def measured(self, capacity: int) -> Steady:
        self._advance(HOURS)
        for queue in self._waiting:
            for _, since, _ in queue:
                self._waited(since)
        hours = HOURS - WARM_UP_HOURS
        return Steady(
            allocation=self._used_hours / (capacity * hours) * 100,
            wasted=self._wasted_hours / (capacity * hours) * 100,
            wasted_gpu_hours=self._wasted_hours / 1000,
            wait_min=60 * sum(self._waits) / max(len(self._waits), 1),
        )

    def _start(self, shape: Shape, node: int, number: int, since: float, hours: float) -> None:
        devices = self._policy.devices(shape, node)
        allocation = self._grid.allocation(shape, node, devices, str(number), 0.0)
        self._grid.take(allocation)
        milli = gpu_milli(shape.request)
        self._used += milli
        heapq.heappush(self._running, (self._now + hours, number, allocation, milli))
        self._waited(since)

    def _waited(self, since: float) -> None:
        if since >= WARM_UP_HOURS:
            self._waits.append(self._now - since)

    def _advance(self, now: float) -> None:
        hours = max(0.0, now - max(self._now, WARM_UP_HOURS))
        self._used_hours += hours * self._used
        self._wasted_hours += hours * min(self._capacity - self._used, self._wanted)
        self._now = now


class _Needs:
    """All shapes as arrays, to find those that fit on one node at once."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = shapes
        self._cpus = np.array([shape.cpus_milli for shape in shapes])
        self._memory = np.array([shape.memory_mib for shape in shapes])
        self._devices = np.array([shape.devices for shape in shapes])
        self._milli = np.array([shape.need_milli for shape in shapes])
        self._mib = np.array([shape.need_mib for shape in shapes])

    def fit(self, grid: Grid, node: int) -> Bools:
        """[shapes]: which fit on the node now. The traces have no labels and no NUMA constraints."""
        kind = grid.kind[node]
        enough = (grid.free_milli[node] >= self._milli[:, kind]) & (grid.free_mib[node] >= self._mib[:, kind])
        fit: Bools = enough.sum(axis=1) >= self._devices
        fit &= (grid.cpus[node] >= self._cpus) & (grid.memory[node] >= self._memory)
        return fit
