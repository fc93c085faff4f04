"""The tables of expected waste, for demands where one can reckon what is left."""

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


def test_where_nothing_is_asked_for_all_that_is_idle_is_wasted() -> None:
    waste = table(demand(), STEP, END, 2)
    assert waste.shape == (PARTS + 3, WIDTH)
    assert np.isclose(waste[37, 5], 370)
    assert waste[PARTS, 5] == 0  # no whole GPU is there
    assert np.isclose(waste[PARTS + 2, 5], 1000)


def test_what_is_smaller_than_anything_typical_is_wasted_and_so_is_a_device_without_cpus() -> None:
    waste = table(demand((50, 1, 1000, 1.0)), STEP, END, 1)
    assert np.isclose(waste[49, -1], 490)
    assert np.isclose(waste[50, column(900)], 500)
    assert waste[50, column(1000)] < 20
    assert waste[80, -1] > 300
    assert 500 < waste[PARTS + 1, column(1500)] < 550  # cpus for one half only


def test_waste_is_a_mean_over_what_may_come_and_the_end() -> None:
    waste = table(demand((100, 1, 0, 0.25), (75, 1, 0, 0.75)), STEP, 1.0, 1)
    left_by_three_quarters = 250.0
    chosen = 0.75 * np.exp(-left_by_three_quarters / 1000)  # a workload that wastes comes less often
    expected = (1.0 * 1000 + chosen * left_by_three_quarters) / (1.0 + chosen + 0.25)
    assert np.isclose(waste[PARTS + 1, -1], expected)


def test_several_devices_are_of_use_only_where_there_are_so_many() -> None:
    waste = table(demand((100, 2, 1000, 1.0)), STEP, END, 3)
    alone, pair, three = waste[PARTS + 1 :, -1]
    assert np.isclose(alone, 1000)
    assert pair == three < 50
    assert np.isclose(waste[PARTS + 2, column(500)], 1000)


def test_more_cpus_never_waste_more_where_all_workloads_are_alike() -> None:
    waste = table(demand((30, 1, 1500, 1.0)), STEP, END, 1)
    assert (np.diff(waste, axis=1) < 1e-9).all()
