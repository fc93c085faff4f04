"""The capacity that typical workloads cannot use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import REQUESTS, clusters

from benchmarks.placement.fragmentation import Fragmentation
from commonage.domain.requests import GpuRequest, Request, parse_gpus
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.scored import first_fitting
from commonage.testing import factories

HALF = Request(1000, 0, parse_gpus("0.5"))
PAIR = Request(4000, 0, parse_gpus("2"))
NO_GPU = Request(2000, 0)


def test_nothing_is_fragmented_without_a_mix() -> None:
    grid = Grid([factories.node("a", 2)])
    assert Fragmentation(grid, WorkloadMix()).by_node().tolist() == [0.0]


def hold(grid: Grid, node: int, request: Request, devices: list[int], name: str) -> None:
    shape = grid.shape(request)
    grid.take(grid.allocation(shape, node, devices, name, 0.0))


def test_idle_capacity_counts_for_workloads_that_cannot_use_it() -> None:
    grid = Grid([factories.node("a", 2, cpus_milli=8000)])
    measure = Fragmentation(grid, WorkloadMix((HALF, PAIR, NO_GPU), (0.5, 0.25, 0.25)))
    # Both GPUs are of use to half a GPU and to two GPUs, and to what takes none they never are.
    assert measure.by_node()[0] == 0.25 * 2000
    hold(grid, 0, Request(1000, 0, parse_gpus("0.7")), [0], "first")
    # 300 of the first GPU are too little for a half, and two whole GPUs there are no more.
    assert measure.by_node()[0] == pytest.approx(0.5 * 300 + 0.25 * 1300 + 0.25 * 1300)


def test_devices_without_cpus_are_fragmented() -> None:
    grid = Grid([factories.node("a", 2, cpus_milli=8000)])
    measure = Fragmentation(grid, WorkloadMix((HALF, PAIR), (0.5, 0.5)))
    hold(grid, 0, Request(5000, 0), [], "cpus")
    assert measure.by_node()[0] == 0.5 * 2000


def test_devices_of_another_model_are_fragmented() -> None:
    grid = Grid([factories.node("a", 1)])
    other = Request(1000, 0, GpuRequest(whole=1, model="H100|H200"))
    same = Request(1000, 0, GpuRequest(whole=1, model=f"H100|{factories.MODEL}"))
    assert Fragmentation(grid, WorkloadMix((other,), (1.0,))).by_node()[0] == 1000
    assert Fragmentation(grid, WorkloadMix((same,), (1.0,))).by_node()[0] == 0


@settings(max_examples=40, deadline=None)
@given(clusters(), st.lists(REQUESTS, min_size=1, max_size=6), st.data())
def test_cached_fragmentation_equals_the_computed_one(cluster: list, asked: list[Request], data: st.DataObject) -> None:
    grid = Grid(cluster)
    mix = WorkloadMix.of(asked, 1.0)
    measure = Fragmentation(grid, mix)
    for number, request in enumerate(asked):
        measure.by_node()
        shape = grid.shape(request)
        places = np.flatnonzero(grid.fits(shape, np.arange(len(cluster))))
        if len(places):
            node = int(data.draw(st.sampled_from(list(places))))
            hold(grid, node, request, list(first_fitting(grid, shape, node)), str(number))
    fresh = Fragmentation(grid, mix).by_node()
    assert measure.by_node() == pytest.approx(fresh)
    idle = np.where(grid.kind >= 0, grid.free_milli, 0).sum(axis=1)
    assert (fresh >= -1e-6).all() and (fresh <= idle + 1e-6).all()
