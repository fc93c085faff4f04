"""Resource rows and allocation tables agree with the grid."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import REQUESTS, clusters

from commonage.domain.nodes import Node
from commonage.domain.requests import Request
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest
from commonage.scheduler.model.space import everywhere, fits_in, free_rows, pick_devices, times_in, whole_rows

FIELDS = ("cpus", "memory", "free_mib", "free_milli")


def fill(grid: Grid, requests: list[Request]) -> AllocationTable:
    """Put each on the first node that has room; every second one ends."""
    allocations = AllocationTable(grid)
    for number, request in enumerate(requests):
        shape = grid.shape(request)
        for node in np.flatnonzero(grid.fits(shape, everywhere(grid))).tolist()[:1]:
            devices = pick_devices(grid, shape, node, free_rows(grid, np.array([node]))[0])
            allocation = grid.allocation(shape, node, devices, f"a{number}", 0.0)
            ends_at = float(number) if number % 2 else None
            grid.take(allocation)
            allocations.take(AllocatedRequest(allocation, f"w{number}", "", "ann", "job", ends_at))
    return allocations


@given(clusters(), st.lists(REQUESTS, max_size=8), REQUESTS)
def test_fits_in_free_rows_agrees_with_the_grid(nodes: list[Node], running: list[Request], request: Request) -> None:
    grid = Grid(nodes)
    fill(grid, running)
    shape, all_nodes = grid.shape(request), everywhere(grid)
    rows = free_rows(grid, all_nodes)
    assert fits_in(grid, shape, all_nodes, rows).tolist() == grid.fits(shape, all_nodes).tolist()
    times = times_in(grid, shape, all_nodes, rows).tolist()
    for number, most in enumerate(times):
        fitted = 0
        while grid.fits(shape, np.array([number]))[0]:
            devices = pick_devices(grid, shape, number, free_rows(grid, np.array([number]))[0])
            grid.take(grid.allocation(shape, number, devices, f"new{number}/{fitted}", 0.0))
            fitted += 1
        assert fitted == most


@given(clusters(), st.lists(REQUESTS, max_size=8))
def test_free_and_allocated_rows_add_up_to_the_capacity(nodes: list[Node], running: list[Request]) -> None:
    grid = Grid(nodes)
    allocations = fill(grid, running)
    slots = np.array([allocations.slot[allocated.allocation.attempt_id] for allocated in allocations], np.int64)
    all_nodes = everywhere(grid)
    assert np.array_equal(free_rows(grid, all_nodes) + allocations.sum(slots), whole_rows(grid, all_nodes))


@given(clusters(), st.lists(REQUESTS, max_size=8), st.integers(0, 8))
def test_ended_by_equals_the_room_after_time_limits_ended(nodes: list[Node], running: list[Request], at: int) -> None:
    grid = Grid(nodes)
    allocations = fill(grid, running)
    expected = free_rows(grid, everywhere(grid)) + allocations.ended_by(at)
    for allocated in list(allocations):
        if allocated.ends_at is not None and allocated.ends_at <= at:
            grid.give(allocated.allocation)
            assert allocations.give(allocated.allocation.attempt_id) is allocated
    assert np.array_equal(free_rows(grid, everywhere(grid)), expected)
    assert not allocations.ended_by(at).any()
    assert allocations.give("nobody") is None


@given(clusters(), st.lists(REQUESTS, max_size=8))
def test_allocation_table_follows_added_and_removed_nodes(nodes: list[Node], running: list[Request]) -> None:
    grid = Grid(nodes)
    allocations = fill(grid, running)
    grid.remove(nodes[0].key)
    left = [allocated for allocated in allocations if allocated.allocation.node != nodes[0].name]
    assert np.array_equal(allocations.ended_by(1e9), AllocationTable(grid, left).ended_by(1e9))
    assert len(allocations) >= len(left)
    grid.put([nodes[0]])
    assert np.array_equal(allocations.ended_by(1e9), AllocationTable(grid, allocations).ended_by(1e9))
