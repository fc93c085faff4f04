"""Finds the smallest set of workloads to evict from one node so that a shape fits there. Called by preemption.py.

Exact for few candidates. For many, a greedy search clears the cheapest devices, then CPUs and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, Ints, Shape
from commonage.scheduler.model.space import combinable_devices, devices_in, fits_in, free_rows

MAX_COMBINATIONS = 4000  # sets of a size are tried exhaustively up to this number of sets


@dataclass(frozen=True, slots=True)
class EvictionUnit:
    """Workloads evicted together, an attempt or a gang: `priority` is the highest, `at` the latest start."""

    slots: tuple[int, ...]
    allocated: tuple[AllocatedRequest, ...]
    priority: int
    at: float


Cost = tuple[int, tuple[int, ...], tuple[float, ...]]


def cost_of(units: Collection[EvictionUnit]) -> Cost:
    """A key to compare sets: fewer victims first, then lower priorities, then younger ones."""
    count = sum(len(unit.slots) for unit in units)
    return (count, tuple(sorted((u.priority for u in units), reverse=True)), tuple(sorted(-u.at for u in units)))


def order_of(unit: EvictionUnit) -> tuple[int, int, float, str]:
    """A sort key: the unit to evict first comes first."""
    return (len(unit.slots), unit.priority, -unit.at, unit.allocated[0].allocation.attempt_id)


def cheapest_set(
    grid: Grid,
    shape: Shape,
    number: int,
    units: Sequence[EvictionUnit],
    rows: Ints,
    is_legal: Callable[[Collection[EvictionUnit]], bool],
) -> tuple[EvictionUnit, ...] | None:
    """The units to evict from a node; each frees its row of `rows` [units, W]. None if no set is legal."""
    node = _Node(grid, shape, number, rows)
    best: tuple[EvictionUnit, ...] | None = None
    size = 1
    while size <= len(units) and comb(len(units), size) <= MAX_COMBINATIONS:
        if best is not None and cost_of(best)[0] <= size:
            return best
        for chosen in node.sufficient_sets(size):
            some = tuple(units[index] for index in chosen)
            if (best is None or cost_of(some) < cost_of(best)) and is_legal(some):
                best = some
        size += 1
    if best is not None or size > len(units):
        return best
    return _clear_greedily(node, units, is_legal)


class _Node:
    """The free row of a node, and the row that each unit frees."""

    def __init__(self, grid: Grid, shape: Shape, number: int, rows: Ints) -> None:
        self.grid, self.shape, self.rows = grid, shape, rows
        self.nodes = np.array([number])
        self.free = free_rows(grid, self.nodes)[0]

    def sufficient_sets(self, size: int) -> list[list[int]]:
        sets = np.array(list(combinations(range(len(self.rows)), size)), np.int64)
        sums = self.free + self.rows[sets].sum(axis=1)
        chosen: list[list[int]] = sets[fits_in(self.grid, self.shape, np.repeat(self.nodes, len(sets)), sums)].tolist()
        return chosen

    def fits(self, chosen: Collection[int]) -> bool:
        return bool(fits_in(self.grid, self.shape, self.nodes, self._freed(chosen))[0])

    def is_short(self, device: int, chosen: Collection[int]) -> bool:
        return not devices_in(self.grid, self.shape, self.nodes, self._freed(chosen))[0, device]

    def _freed(self, chosen: Collection[int]) -> Ints:
        """[1, W]: the free row after their eviction."""
        return np.asarray(self.free + self.rows[list(chosen)].sum(axis=0), np.int64)[None, :]


def _clear_greedily(
    node: _Node, units: Sequence[EvictionUnit], is_legal: Callable[[Collection[EvictionUnit]], bool]
) -> tuple[EvictionUnit, ...] | None:
    """Clear the cheapest devices, add the units that free most CPUs and memory, drop superfluous ones."""
    best: tuple[EvictionUnit, ...] | None = None
    for devices in combinable_devices(node.grid, node.shape, int(node.nodes[0])):
        chosen = _clear_devices(node, devices.tolist())
        if chosen is None:
            continue
        for column, wanted in enumerate((node.shape.cpus_milli, node.shape.memory_mib)):
            for index in np.argsort(-node.rows[:, column], kind="stable").tolist():
                if node.free[column] + node.rows[list(chosen), column].sum() >= wanted:
                    break
                chosen.setdefault(index)
        if not node.fits(chosen):
            continue
        for index in sorted(chosen, key=lambda index: order_of(units[index]), reverse=True):
            fewer = [other for other in chosen if other != index]
            if node.fits(fewer):
                del chosen[index]
        some = tuple(units[index] for index in chosen)
        if (best is None or cost_of(some) < cost_of(best)) and is_legal(some):
            best = some
    return best


def _clear_devices(node: _Node, devices: list[int]) -> dict[int, None] | None:
    """Few units whose eviction frees the devices that the shape takes; None if impossible."""
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


def _clear_one(node: _Node, device: int, gone: Collection[int]) -> list[int] | None:
    """The further units to evict for one device, the largest first; None if impossible."""
    more: list[int] = []
    on_device = node.rows[:, 2 + device]
    for index in [None, *np.argsort(-on_device, kind="stable").tolist()]:
        if index is not None and (index in gone or not on_device[index]):
            continue
        if index is not None:
            more.append(index)
        if not node.is_short(device, [*gone, *more]):
            return more
    return None
