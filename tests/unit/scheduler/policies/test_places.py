"""Places of typical workloads, their prices, and small workloads that leave them to large ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.policies.rules import make, node, put, stop

from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.places import _BLOCK, HORIZON, UNLIKELY, Places, rare_shapes
from commonage.testing import factories

IDLE = st.lists(st.integers(0, 1000), min_size=3, max_size=3)


def places(*asked: tuple[str, int]) -> Places:
    """Of requests for GPUs, with CPUs (thousandths), on one kind of devices."""
    grid = Grid([node("a", 3)])
    shapes = [grid.shape(Request(cpus, 0, parse_gpus(gpus))) for gpus, cpus in asked]
    taken = np.array([[shape.need_milli[0] / 1000 for shape in shapes]])
    return Places.of(shapes, taken, np.full(len(shapes), 1 / len(shapes)))


@given(st.lists(st.tuples(IDLE, st.integers(-1000, 9000)), min_size=1, max_size=5))
def test_a_place_has_room_on_devices_and_enough_cpus(nodes: list[tuple[list[int], int]]) -> None:
    asked = [("0.3", 500), ("1", 2000), ("2", 4000)]
    idle = np.array([one for one, _ in nodes])
    cpus = np.array([float(left) for _, left in nodes])
    found = places(*asked).count(np.zeros_like(idle), idle, cpus)
    for (devices, left), row in zip(nodes, found, strict=True):
        whole = sum(one == 1000 for one in devices)
        by_devices = (sum(one // 300 for one in devices), whole, whole // 2)
        assert row.tolist() == [
            min(room, max(left, 0) // cpus) for room, (_, cpus) in zip(by_devices, asked, strict=True)
        ]


def test_many_nodes_are_counted_as_few_are() -> None:
    one = places(("0.5", 1000))
    idle = np.arange(_BLOCK * 2 + 3)[:, None] % 1001
    kind, cpus = np.zeros_like(idle), np.full(len(idle), 8000.0)
    assert one.count(kind, idle, cpus)[:, 0].tolist() == (idle[:, 0] // 500).tolist()


def test_no_device_has_no_place() -> None:
    assert places(("0.5", 1000)).count(np.array([[-1]]), np.array([[1000]]), np.array([8000.0])).tolist() == [[0]]


def test_price_rises_as_places_run_out_and_ends_with_the_last() -> None:
    one = places(("2", 1000))
    idle = 10_000.0
    prices = [float(one.prices(np.array([supply]), idle)[0]) for supply in (0, 1, 5, 20, 1000)]
    assert prices[0] == 0, "a place that does not exist cannot be lost"
    assert 2000 > prices[1] > prices[2] > prices[3] > 0
    assert prices[4] == 0
    enough = -HORIZON * idle * np.log(UNLIKELY) / 2000
    assert one.prices(np.array([int(enough) + 1]), idle) == [0]


def test_rare_workloads_take_a_node_of_each_size_and_a_device_of_each_model() -> None:
    gpus = [factories.device(number, uuid=f"GPU-b-{number}", model="B100") for number in range(4)]
    large = factories.node("b", gpus, cpus_milli=64_000)
    grid = Grid([node("a", 2, 16_000), node("c", 2, 16_300), node("d", 1, 8000), large])
    shapes = rare_shapes(grid, grid.cpus_total.astype(float))
    asked = [(one.request.cpus_milli, one.request.gpu) for one in shapes]
    assert [(cpus, gpu.whole, gpu.model is None) for cpus, gpu in asked if gpu] == [
        (15_360, 2, True),
        (61_440, 4, True),
        (1000, 1, False),
        (1000, 1, False),
    ]


@pytest.mark.parametrize("cpus", [0, 1, 7, 8])
def test_plans_nodes_with_few_cpus(cpus: int) -> None:
    grid = Grid([node("a", 2, cpus)])
    assert [one.request.cpus_milli for one in rare_shapes(grid, grid.cpus_total.astype(float))] == [max(1, cpus), 1000]


def test_small_workloads_leave_the_nodes_that_large_ones_need() -> None:
    small, large = stop("1", 4000), stop("4", 64_000)
    mix = WorkloadMix.of([small] * 9 + [large])
    nodes = [node(f"small-{number}", 4, 16_000) for number in range(6)]
    grid, policy = make("expected-waste", node("large", 4, 64_000), *nodes, mix=mix)
    assert {put(grid, policy, small)[0] for _ in range(24)} == set(range(1, 7))
    assert put(grid, policy, large) == (0, [0, 1, 2, 3])


def test_the_last_node_of_a_size_is_left_before_anybody_asked_for_it() -> None:
    small = stop("1", 1000)
    nodes = [node(f"small-{number}", 4, 16_000) for number in range(6)]
    grid, policy = make("expected-waste", node("large", 4, 128_000), *nodes, mix=WorkloadMix.of([small]))
    assert 0 not in {put(grid, policy, small)[0] for _ in range(24)}
