"""The tables of expected waste, for demands with a known result."""

from __future__ import annotations

import numpy as np

from commonage.scheduler.policies.waste_tables import END, FINE, PARTS, WIDTH, Demand, table

STEP = 50.0


def demand(*wanted: tuple[int, int, float, float]) -> Demand:
    """Of (parts, GPUs, cpus, rate)."""
    parts, devices, cpus, rate = zip(*wanted, strict=True) if wanted else ((), (), (), ())
    ints = (np.array(one, np.int64) for one in (parts, devices))
    return Demand(*ints, *(np.array(one, np.float64) for one in (cpus, rate)))


def column(cpus: float) -> int:
    return round(cpus / STEP * FINE)


def test_all_idle_capacity_is_wasted_without_demand() -> None:
    waste = table(demand(), STEP, END, 2)
    assert waste.shape == (PARTS + 3, WIDTH)
    assert np.isclose(waste[37, 5], 370)
    assert waste[PARTS, 5] == 0  # no whole GPU is there
    assert np.isclose(waste[PARTS + 2, 5], 1000)


def test_too_small_remainders_and_devices_without_cpus_are_wasted() -> None:
    waste = table(demand((50, 1, 1000, 1.0)), STEP, END, 1)
    assert np.isclose(waste[49, -1], 490)
    assert np.isclose(waste[50, column(900)], 500)
    assert waste[50, column(1000)] < 20
    assert waste[80, -1] > 300
    assert 500 < waste[PARTS + 1, column(1500)] < 550  # cpus for one half only


def test_waste_is_the_mean_over_next_events() -> None:
    waste = table(demand((100, 1, 0, 0.25), (75, 1, 0, 0.75)), STEP, 1.0, 1)
    left_by_three_quarters = 250.0
    chosen = 0.75 * np.exp(-left_by_three_quarters / 1000)  # a workload that wastes comes less often
    expected = (1.0 * 1000 + chosen * left_by_three_quarters) / (1.0 + chosen + 0.25)
    assert np.isclose(waste[PARTS + 1, -1], expected)


def test_multi_device_demand_needs_enough_whole_devices() -> None:
    waste = table(demand((100, 2, 1000, 1.0)), STEP, END, 3)
    alone, pair, three = waste[PARTS + 1 :, -1]
    assert np.isclose(alone, 1000)
    assert pair == three < 50
    assert np.isclose(waste[PARTS + 2, column(500)], 1000)


def test_more_cpus_never_add_waste_for_equal_workloads() -> None:
    waste = table(demand((30, 1, 1500, 1.0)), STEP, END, 1)
    assert (np.diff(waste, axis=1) < 1e-9).all()
