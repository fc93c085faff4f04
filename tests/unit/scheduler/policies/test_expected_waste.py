"""`expected-waste` on nodes where the waste is evident."""

from __future__ import annotations

from copy import copy

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB
from tests.unit.scheduler.policies.rules import choose, make, node, put, stop

from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.model.grid import Grid, Row, Rows
from commonage.scheduler.policies.expected_waste import CHECK_EVERY, ExpectedWaste
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import DEFAULT
from commonage.testing import factories

POLICY = "expected-waste"


def mix(*gpus: str, cpus: int = 1000) -> WorkloadMix:
    return WorkloadMix.of([stop(one, cpus) for one in gpus])


def test_expected_waste_is_the_default() -> None:
    assert DEFAULT == POLICY


def test_exact_gap_is_filled() -> None:
    grid, policy = make(POLICY, node("a", 1), node("b", 1), node("c", 1), mix=mix("0.75", "0.5", "0.25", "1"))
    put(grid, policy, stop("0.5"), at=(0, [0]))
    put(grid, policy, stop("0.75"), at=(1, [0]))
    assert put(grid, policy, stop("0.25")) == (1, [0])
    assert put(grid, policy, stop("0.5")) == (0, [0])


def test_gap_that_others_need_is_left() -> None:
    grid, policy = make(POLICY, node("a", 2), mix=mix("0.7", "0.7", "0.3"))
    put(grid, policy, stop("0.3"), at=(0, [0]))
    put(grid, policy, stop("0.4"), at=(0, [1]))
    assert put(grid, policy, stop("0.3")) == (0, [1])
    assert put(grid, policy, stop("0.7")) == (0, [0])


def test_devices_of_multi_gpu_requests_stay_together() -> None:
    grid, policy = make(POLICY, node("pair", 2), node("odd", 3), mix=mix("1", "2", "2", "0.5"))
    put(grid, policy, stop("2"), at=(1, [0, 1]))
    assert put(grid, policy, stop("1")) == (1, [2])
    assert put(grid, policy, stop("2")) == (0, [0, 1])


def test_requests_with_few_cpus_go_to_devices_with_few_cpus() -> None:
    typical = WorkloadMix.of([stop("1", 2000), stop("1", 12_000)])
    grid, policy = make(POLICY, node("many-cpus", 2, 24_000), node("few-cpus", 2, 4_000), mix=typical)
    assert put(grid, policy, stop("1", 2000))[0] == 1
    assert put(grid, policy, stop("1", 12_000))[0] == 0
    assert put(grid, policy, stop("1", 2000))[0] == 1


def test_request_without_gpu_takes_no_cpus_from_idle_devices() -> None:
    typical = mix("1", "0.5", cpus=4000)
    grid, policy = make(
        POLICY, node("devices", 4, 16_000), node("used-up", 1, 16_000), node("none", 0, 64_000), mix=typical
    )
    put(grid, policy, stop("1", 4000), at=(1, [0]))
    assert put(grid, policy, stop(cpus=8000))[0] == 1  # cpus that no GPU can use
    assert put(grid, policy, stop(cpus=8000))[0] == 2
    costs = policy.costs(grid.shape(stop(cpus=8000)))
    assert costs[0] > 100  # thousandths of a GPU


def test_cluster_without_gpus_is_filled_node_by_node() -> None:
    grid, policy = make(POLICY, node("a", 0), node("b", 0), node("c", 0), mix=WorkloadMix())
    put(grid, policy, stop(), at=(1, []))
    assert {put(grid, policy, stop(cpus=3000))[0] for _ in range(10)} == {1}
    assert put(grid, policy, stop(cpus=3000))[0] == 0


def test_lack_of_memory_can_strand_a_device() -> None:
    nodes = [factories.node(name, 2, cpus_milli=64_000, memory_mib=64 * GIB) for name in "ab"]
    much, little = (WorkloadMix.of([Request(4000, memory * GIB, parse_gpus("1"))]) for memory in (32, 1))
    for typical, lost in ((much, True), (little, False)):
        grid, policy = make(POLICY, *nodes, mix=typical)
        assert (policy.costs(grid.shape(Request(1000, 40 * GIB))).min() > 100) == lost


def test_vram_request_goes_to_the_device_with_least_waste() -> None:
    typical = WorkloadMix.of([stop("6GiB"), stop("6GiB"), stop("12GiB")])
    devices = [[factories.device(0, uuid=f"{size}", memory_mib=size * GIB)] for size in (24, 12, 10)]
    nodes = [factories.node(f"n{number}", device, cpus_milli=32_000) for number, device in enumerate(devices)]
    grid, policy = make(POLICY, *nodes, mix=typical)
    assert put(grid, policy, stop("6GiB"))[0] == 2  # of no use to anything larger
    assert put(grid, policy, stop("12GiB"))[0] == 1
    assert put(grid, policy, stop("6GiB"))[0] == 0


def test_device_in_use_is_filled_first_without_history() -> None:
    grid, policy = make(POLICY, node("a", 2), node("b", 2), mix=WorkloadMix())
    put(grid, policy, stop("0.5"), at=(1, [1]))
    assert put(grid, policy, stop("0.5")) == (1, [1])
    assert put(grid, policy, stop("1")) == (1, [0])
    assert put(grid, policy, stop("2")) == (0, [0, 1])


def test_single_device_takes_all_that_fits() -> None:
    grid, policy = make(POLICY, node("a", 1), mix=WorkloadMix())
    assert [put(grid, policy, stop("1/3")) for _ in range(3)] == [(0, [0])] * 3
    assert choose(grid, policy, grid.shape(stop("0.1"))) is None


def test_policy_learns_from_arrivals() -> None:
    def left_by(comes: str) -> int:
        """The GPU that 0.4 is put on, of 0 with 0.4 free and 1 with 0.8, where this is what comes."""
        grid, policy = make(POLICY, node("a", 2), mix=WorkloadMix())
        put(grid, policy, stop("0.6"), at=(0, [0]))
        put(grid, policy, stop("0.2"), at=(0, [1]))
        for _ in range(500):
            policy.arrived(grid.shape(stop(comes)))
        return put(grid, policy, stop("0.4"))[1][0]

    assert left_by("0.8") == 0
    assert left_by("0.39") == 1


def test_placement_is_deterministic_for_the_same_arrivals() -> None:
    def play() -> list[tuple[int, tuple[int, ...]]]:
        dice = np.random.default_rng(5)
        grid, policy = make(POLICY, *(node(f"n{number}", 4) for number in range(12)), mix=WorkloadMix())
        found = []
        for gpus in dice.choice(["0.1", "0.3", "0.5", "0.7", "1", "2"], 3 * CHECK_EVERY):
            place = choose(grid, policy, grid.shape(stop(str(gpus))))
            if place is not None:
                put(grid, policy, stop(str(gpus)), at=place)
                found.append((place[0], tuple(place[1])))
        return found

    assert play() == play()


def test_devices_of_a_model_that_others_are_bound_to_are_left() -> None:
    nodes = [
        factories.node(model, [factories.device(0, uuid=model, model=model)], cpus_milli=32_000, memory_mib=256 * GIB)
        for model in ("T4", "A100", "H100")
    ]
    bound, free = Request(1000, GIB, parse_gpus("T4:1")), stop("1")
    for mix, first in (([free], 0), ([bound, free], 1)):
        grid, policy = make(POLICY, *nodes, mix=WorkloadMix.of(mix))
        assert put(grid, policy, free)[0] == first


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_cached_costs_equal_uncached_costs(seed: int) -> None:
    """While places become scarce and therefore expensive, and others become free again."""
    dice = np.random.default_rng(seed)
    requests = [stop(gpus, cpus) for gpus in ("0.3", "0.7", "1", "4", None) for cpus in (1000, 6000)]
    grid, policy = make(POLICY, *(node(f"n{number}", 4, 24_000) for number in range(8)), mix=WorkloadMix.of(requests))
    assert isinstance(policy, ExpectedWaste)
    allocated, prices = [], set()
    for number in range(3 * CHECK_EVERY):
        shape = grid.shape(requests[int(dice.integers(len(requests)))])
        policy.arrived(shape)
        costs = policy.costs(shape).copy()
        prices.add(policy._prices.tobytes())
        assert np.allclose(costs, uncached(grid, policy).costs(shape), rtol=0, atol=1e-9)  # inf equals inf
        if np.isfinite(costs).any():
            best = int(np.argmin(costs))
            allocated.append(grid.allocation(shape, best, list(policy.devices(shape, best)), str(number), 0.0))
            grid.take(allocated[-1])
        if allocated and dice.random() < 0.3:
            grid.give(allocated.pop(int(dice.integers(len(allocated)))))
    assert len(prices) > 1


def uncached(grid: Grid, policy: ExpectedWaste) -> ExpectedWaste:
    """The policy with its tables and prices, and without what it computed from them."""
    fresh = copy(policy)
    fresh._state, fresh._supply = Row(grid, fresh._state_of), Row(grid, fresh._places_of)
    fresh._rows, fresh._place_prices = Rows(grid, fresh._compute), Rows(grid, fresh._price_of_places)
    return fresh
