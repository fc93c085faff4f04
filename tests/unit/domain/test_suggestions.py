"""What usage reports say, in words and as the next request."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.requests import parse_gpus, parse_memory
from commonage.domain.usage import (
    UsageFigures,
    UsageReport,
    cores_enough_for,
    memory_text,
    suggestion_of,
    usage_report_in_words,
)
from commonage.testing import factories as make

USED = UsageFigures(measured_s=60, vram_s=60, vram_peak_mib=5000, gpu_s=60, gpu_busy_s=30, gpu_idle_s=6, energy_s=60,
               energy_j=36_000, memory_peak_mib=700, cpu_peak_milli=1900)  # fmt: skip


def usage_report(**fields: object) -> UsageReport:
    return make.usage_report(make.workload(), **{"figures": USED, "gpu_h": 0.42, **fields})


def test_the_highest_peak_of_the_last_runs_counts() -> None:
    low, high = usage_report(figures=replace(USED, vram_peak_mib=1000)), usage_report()
    found = suggestion_of([low, high, low], parse_gpus("20GiB"))
    assert found is not None
    assert (found.gpus, found.peak_mib, found.workload_id, found.runs) == ("5.5GiB", 5000, high.workload_id, 3)
    assert (found.memory_mib, found.cpus_milli, found.too_much) == (1024, 2000, True)
    assert found.summary == "the last 3 runs of it used at most 5000 MiB of VRAM: 5.5 GiB will do"


@pytest.mark.parametrize(
    ("asked", "too_much"), [("6GiB", False), ("8GiB", False), ("9GiB", True), ("1", True), ("0.5", True), (None, False)]
)
def test_much_more_than_would_do(asked: str | None, too_much: bool) -> None:
    found = suggestion_of([usage_report()], parse_gpus(asked))
    assert found is not None
    assert found.too_much is too_much


def test_too_little_is_said() -> None:
    found = suggestion_of([usage_report()], parse_gpus("4GiB"))
    assert found is not None
    assert found.summary.endswith("4 GiB may be too little, 5.5 GiB will do")


def test_real_figures_come_before_simulated_ones() -> None:
    invented = usage_report(simulated=True, figures=replace(USED, vram_peak_mib=20_000))
    found = suggestion_of([invented, usage_report()], None)
    assert found is not None and not found.simulated and found.peak_mib == 5000
    alone = suggestion_of([invented], None)
    assert alone is not None and alone.simulated and "means nothing" in alone.summary


def test_nothing_measured_nothing_said() -> None:
    assert suggestion_of([], None) is None
    assert suggestion_of([usage_report(figures=UsageFigures())], None) is None
    without_device = suggestion_of([usage_report(devices=0, vram_mib=0)], None)
    assert without_device is not None and (without_device.gpus, without_device.summary) == (None, "")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {},
            "asked 8 GiB of VRAM, peak 5000 MiB, 5.5 GiB would have done; 0.42 GPU-hours; 10.0 Wh; "
            "idle 10% of the time",
        ),
        ({"vram_mib": 5120, "gpu_h": 0.001}, "asked 5 GiB of VRAM, peak 5000 MiB; less than 0.01 GPU-hours; 10.0 Wh;"),
        ({"devices": 2, "gpu_h": 150.0}, "asked 8 GiB of VRAM on each of 2 GPUs, peak 5000 MiB, "),
        ({"figures": UsageFigures()}, "asked 8 GiB of VRAM, used: not measured; 0.42 GPU-hours"),
        ({"figures": UsageFigures(vram_s=5.0)}, "asked 8 GiB of VRAM, used none; 0.42 GPU-hours"),
        ({"simulated": True}, "of the time (simulated GPU)"),
        ({"figures": replace(USED, over_share_s=90)}, "over its share for 1 min 30 s"),
        ({"devices": 0}, "asked 1 GiB of memory, peak 700 MiB"),
    ],
)
def test_a_usage_report_in_words(fields: dict[str, object], words: str) -> None:
    assert words in usage_report_in_words(usage_report(**fields))


@given(st.integers(1, 10**6))
def test_what_is_said_can_be_typed(mib: int) -> None:
    assert parse_memory(memory_text(mib)) == mib


@pytest.mark.parametrize(("peak", "cores"), [(0, 500), (600, 500), (994, 1000), (1100, 1000), (1130, 1500)])
def test_cores(peak: int, cores: int) -> None:
    assert cores_enough_for(peak) == cores
