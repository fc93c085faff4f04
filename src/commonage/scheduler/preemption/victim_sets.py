"""Finds the smallest set of workloads to evict from one node so that a shape fits there. Called by preemption.py.

Exact if few may be evicted. If many may be, it clears the cheapest devices first, then CPUs and memory, and finally
keeps every workload that need not go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.queued_requests import Held
from commonage.scheduler.model.shapes import Ints, Shape
from commonage.scheduler.model.space import devices_in, fits_in, free_rows

MOST_COMBINATIONS = 4000
"""All sets of a size are tried if there are at most this number of them."""


@dataclass(frozen=True, slots=True)
class EvictionUnit:
    """Workloads evicted together: one attempt or a whole gang, their highest priority, and the latest start."""

    slots: tuple[int, ...]
    held: tuple[Held, ...]
    priority: int
    at: float


Cost = tuple[int, tuple[int, ...], tuple[float, ...]]


def cost_of(units: Collection[EvictionUnit]) -> Cost:
    """A key to compare sets: fewer victims first, then lower priorities, then younger ones."""
    count = sum(len(unit.slots) for unit in units)
    return (count, tuple(sorted((u.priority for u in units), reverse=True)), tuple(sorted(-u.at for u in units)))


def order_of(unit: EvictionUnit) -> tuple[int, int, float, str]:
    """A sort key: the unit to evict first comes first."""
    return (len(unit.slots), unit.priority, -unit.at, unit.held[0].allocation.attempt_id)


def cheapest_on(
    grid: Grid,
    shape: Shape,
    number: int,
    units: Sequence[EvictionUnit],
    rows: Ints,
    legal: Callable[[Collection[EvictionUnit]], bool],
) -> tuple[EvictionUnit, ...] | None:
    """The units to evict from a node, each of which frees its row of `rows` [units, W]; None if no set is legal."""
    node = _OneNode(grid, shape, number, rows)
    best: tuple[EvictionUnit, ...] | None = None
    size = 1
    while size <= len(units) and comb(len(units), size) <= MOST_COMBINATIONS:
        if best is not None and cost_of(best)[0] <= size:
            return best
        for chosen in node.enough(size):
            some = tuple(units[index] for index in chosen)
            if (best is None or cost_of(some) < cost_of(best)) and legal(some):
                best = some
        size += 1
    if best is not None or size > len(units):
        return best
    return _cleared(node, units, legal)


class _OneNode:
    """The free row of a node, and the row that each unit frees."""

    def __init__(self, grid: Grid, shape: Shape, number: int, rows: Ints) -> None:
        self.grid, self.shape, self.rows = grid, shape, rows
        self.nodes = np.array([number])
        self.free = free_rows(grid, self.nodes)[0]

    def enough(self, size: int) -> list[list[int]]:
        """All sets of `size` units whose eviction is enough."""
        sets = np.array(list(combinations(range(len(self.rows)), size)), np.int64)
        sums = self.free + self.rows[sets].sum(axis=1)
        chosen: list[list[int]] = sets[fits_in(self.grid, self.shape, np.repeat(self.nodes, len(sets)), sums)].tolist()
        return chosen

    def fits(self, chosen: Collection[int]) -> bool:
        """True if the shape fits after their eviction."""
        row = self.free + self.rows[list(chosen)].sum(axis=0)
        return bool(fits_in(self.grid, self.shape, self.nodes, row[None, :])[0])

    def shortfalls(self, device: int, chosen: Collection[int]) -> bool:
        """True if a device is still too small after their eviction."""
        row = self.free + self.rows[list(chosen)].sum(axis=0)
        return not devices_in(self.grid, self.shape, self.nodes, row[None, :])[0, device]


def _cleared(
    node: _OneNode, units: Sequence[EvictionUnit], legal: Callable[[Collection[EvictionUnit]], bool]
) -> tuple[EvictionUnit, ...] | None:
    """Clear the cheapest devices, then add the units that free most CPUs and memory, then drop superfluous ones."""
    best: tuple[EvictionUnit, ...] | None = None
    for devices in _groups(node):
        chosen = _clear_devices(node, devices)
        for column in (0, 1):
            for index in np.argsort(-node.rows[:, column], kind="stable").tolist():
                if chosen is None or _has(node, column, chosen):
                    break
                chosen.setdefault(index)
        if chosen is None or not node.fits(chosen):
            continue
        for index in sorted(chosen, key=lambda index: order_of(units[index]), reverse=True):
            fewer = [other for other in chosen if other != index]
            if node.fits(fewer):
                del chosen[index]
        some = tuple(units[index] for index in chosen)
        if (best is None or cost_of(some) < cost_of(best)) and legal(some):
            best = some
    return best


def _groups(node: _OneNode) -> list[list[int]]:
    """The devices that can be combined: all, or those of each NUMA node."""
    numa = node.grid.numa[node.nodes[0]]
    if node.shape.request.one_numa and node.shape.devices > 1:
        return [np.flatnonzero(numa == place).tolist() for place in np.unique(numa)]
    return [list(range(len(numa)))]


def _clear_devices(node: _OneNode, devices: list[int]) -> dict[int, None] | None:
    """The units whose eviction frees as many devices as the shape takes, with the fewest units; None if impossible."""
    chosen: dict[int, None] = {}
    left = list(devices)
    for _ in range(node.shape.devices):
        ways = [(way, device) for device in left if (way := _clear_one(node, device, chosen)) is not None]
        if not ways:
            return None
        way, device = min(ways, key=lambda pair: (len(pair[0]), pair[1]))
        chosen |= dict.fromkeys(way)
        left.remove(device)
    return chosen


def _clear_one(node: _OneNode, device: int, gone: Collection[int]) -> list[int] | None:
    """The further units to evict for one device, besides those already gone; the largest first."""
    more: list[int] = []
    on_device = node.rows[:, 2 + device]
    for index in [None, *np.argsort(-on_device, kind="stable").tolist()]:
        if index is not None and (index in gone or not on_device[index]):
            continue
        if index is not None:
            more.append(index)
        if not node.shortfalls(device, [*gone, *more]):
            return more
    return None


def _has(node: _OneNode, column: int, chosen: Collection[int]) -> bool:
    """True if CPUs (column 0) or memory (column 1) are enough."""
    wanted = (node.shape.cpus_milli, node.shape.memory_mib)[column]
    return bool(node.free[column] + node.rows[list(chosen), column].sum() >= wanted)
