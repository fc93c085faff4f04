"""Resources of a node as one row of numbers, so that reserved, freed and evicted amounts add and compare at once.

A row has W = 2 + 2C columns: CPUs (thousandths), memory (MiB), then VRAM (MiB) of each device, then compute
(thousandths) of each. Read by allocations.py, backfill and preemption. The grid has the free room.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonage.domain.nodes import Allocation
from commonage.scheduler.model.grid import Grid, max_colocated
from commonage.scheduler.model.shapes import Bools, Ints, Shape


def everywhere(grid: Grid) -> Ints:
    return np.arange(len(grid.nodes))


def width(grid: Grid) -> int:
    return 2 + 2 * int(grid.kind.shape[1])


def free_rows(grid: Grid, nodes: Ints) -> Ints:
    own = (grid.cpus[nodes, None], grid.memory[nodes, None])
    return np.concatenate((*own, grid.free_mib[nodes], grid.free_milli[nodes]), axis=1)


def whole_rows(grid: Grid, nodes: Ints) -> Ints:
    """[n, W]: the room of these nodes when empty."""
    own = (grid.cpus_total[nodes, None], grid.memory_total[nodes, None])
    return np.concatenate((*own, grid.total_mib[nodes], np.where(grid.total_mib[nodes] > 0, 1000, 0)), axis=1)


def row_of(grid: Grid, allocation: Allocation) -> Ints:
    """[W]: the room of an allocation on its node."""
    devices = grid.kind.shape[1]
    row = np.zeros(2 + 2 * devices, np.int64)
    row[0], row[1] = allocation.cpus_milli, allocation.memory_mib
    number = grid.number.get(allocation.node_key)
    for share in allocation.shares:
        index = None if number is None else grid.device(number, share.device_uuid)
        if index is not None:
            row[2 + index] += share.memory_mib
            row[2 + devices + index] += share.compute_milli
    return row


def devices_in(grid: Grid, shape: Shape, nodes: Ints, rows: Ints) -> Bools:
    """[n, C]: the devices with the resources that the shape takes from one, if `rows` [n, W] are free."""
    kind, devices = grid.kind[nodes], grid.kind.shape[1]
    enough: Bools = rows[:, 2 : 2 + devices] >= shape.need_mib[kind]
    enough &= rows[:, 2 + devices :] >= shape.need_milli[kind]
    return enough


def fits_in(grid: Grid, shape: Shape, nodes: Ints, rows: Ints) -> Bools:
    """[n]: whether the node is schedulable and the shape would fit on it if `rows` [n, W] were free."""
    fit: Bools = grid.schedulable(shape, nodes) & (rows[:, 0] >= shape.cpus_milli)
    fit &= rows[:, 1] >= shape.memory_mib
    if shape.is_restricted:
        fit &= grid.admits(shape, nodes)
    if shape.devices:
        fit &= max_colocated(devices_in(grid, shape, nodes, rows), grid.numa[nodes], shape) >= shape.devices
    return fit


def times_in(grid: Grid, shape: Shape, nodes: Ints, rows: Ints) -> Ints:
    """[n]: number of copies of the shape that would fit at the same time if `rows` [n, W] were free."""
    most = np.minimum(rows[:, 0] // max(1, shape.cpus_milli), rows[:, 1] // max(1, shape.memory_mib))
    if shape.devices:
        most = np.minimum(most, _devices_times(grid, shape, nodes, rows))
    fit: Bools = fits_in(grid, shape, nodes, rows)
    return np.where(fit, most, 0)


def _devices_times(grid: Grid, shape: Shape, nodes: Ints, rows: Ints) -> Ints:
    """[n]: number of copies for which the devices suffice."""
    if shape.is_part:
        kind, devices = grid.kind[nodes], grid.kind.shape[1]
        mib = rows[:, 2 : 2 + devices] // np.maximum(1, shape.need_mib[kind])
        milli = rows[:, 2 + devices :] // np.maximum(1, shape.need_milli[kind])
        return np.asarray(np.maximum(0, np.minimum(mib, milli)).sum(axis=1), np.int64)
    fit, numa = devices_in(grid, shape, nodes, rows), grid.numa[nodes]
    if not shape.request.one_numa or shape.devices < 2:
        return np.asarray(np.count_nonzero(fit, axis=1) // shape.devices, np.int64)
    times = np.zeros(len(nodes), np.int64)
    for place in np.unique(numa):
        times += np.count_nonzero(fit & (numa == place), axis=1) // shape.devices
    return times


def combinable_devices(grid: Grid, shape: Shape, number: int) -> list[Ints]:
    """The groups of devices of a node that the shape can combine: all, or those of each NUMA node."""
    numa = grid.numa[number]
    if not shape.request.one_numa or shape.devices < 2:
        return [np.arange(len(numa))]
    return [np.flatnonzero(numa == place) for place in np.unique(numa)]


def pick_devices(grid: Grid, shape: Shape, number: int, row: Ints) -> Sequence[int]:
    """Devices of a node for a shape that fits there if `row` [W] is free: the fullest that still fit."""
    if not shape.devices:
        return ()
    devices = grid.kind.shape[1]
    fit = np.flatnonzero(devices_in(grid, shape, np.array([number]), row[None, :])[0])
    if shape.request.one_numa and shape.devices > 1:
        numa = grid.numa[number]
        enough = [place for place in np.unique(numa) if np.count_nonzero(numa[fit] == place) >= shape.devices]
        fit = fit[numa[fit] == min(enough, key=lambda place: np.count_nonzero(numa[fit] == place))]
    fullest = sorted(fit.tolist(), key=lambda device: (row[2 + devices + device], row[2 + device], device))
    return fullest[: shape.devices]
