"""The arithmetic of usage reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.requests import parse_memory
from commonage.domain.usage import (
    Measured,
    UsageFigures,
    hash_command,
    request_for_peak,
    sum_of,
    with_measurement,
)
from commonage.testing import factories as make


@pytest.mark.parametrize(
    ("peak", "enough"),
    [(1, 512), (700, 1024), (1700, 2048), (5000, 5632), (7400, 8192), (9000, 10 * 1024), (22_000, 24 * 1024)],
)
def test_what_would_have_done(peak: int, enough: int) -> None:
    assert request_for_peak(peak) == enough


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_it_is_enough_and_not_wasteful(peak: int, device: int) -> None:
    enough = request_for_peak(peak)
    assert peak + 256 <= enough <= peak * 1.1 + 256 + 1024 + 1
    assert request_for_peak(peak, device) == min(enough, device)
    assert parse_memory(f"{enough}MiB") == enough


def test_unknown_figures_add_nothing() -> None:
    some = with_measurement(UsageFigures(), Measured(10, 10, vram_mib=1000, vram_max_mib=600, gpu=0.5, energy_j=70))
    unknown = with_measurement(some, Measured(30, 40))
    assert (unknown.vram_s, unknown.gpu_s, unknown.energy_s, unknown.measured_s) == (10, 10, 10, 40)
    assert unknown.vram_mib_s / unknown.vram_s == 1000
    assert unknown.vram_peak_mib == 600
    assert unknown.gpu_idle_s == 0, "nobody knows whether it idled"


def test_first_use_is_the_first() -> None:
    waits = with_measurement(UsageFigures(), Measured(5, 5, vram_mib=0, gpu=0.0))
    assert waits.first_gpu_s is None
    uses = with_measurement(waits, Measured(5, 10, vram_mib=300, gpu=0.0))
    assert with_measurement(uses, Measured(5, 15, vram_mib=300, gpu=0.9)).first_gpu_s == 10
    assert uses.gpu_idle_s == 10


def test_likeness_is_of_environment_and_every_word() -> None:
    alike = hash_command("base", ["python", "train.py"])
    assert alike == hash_command("base", ("python", "train.py"))
    assert len({alike, hash_command("base", ["python train.py"]), hash_command("b", ["python", "train.py"])}) == 3
    assert hash_command("base", ["\ud800"])


def test_the_sum_of_tries_is_asked_as_the_last() -> None:
    one = make.workload()
    first = make.usage_report(
        one, 1, figures=UsageFigures(vram_peak_mib=9, vram_s=1.0, first_gpu_s=3.0), gpu_h=1.0, ended_at=2.0
    )
    last = make.usage_report(one, 2, figures=UsageFigures(vram_peak_mib=5, vram_s=1.0), gpu_h=0.5, vram_mib=77)
    total = sum_of([first, last])
    assert total is not None
    assert (total.vram_peak_mib, total.gpu_h, total.vram_mib, total.ended_at) == (9, 1.5, 77, None)
    assert total.figures.first_gpu_s == 3.0
    assert sum_of([]) is None
