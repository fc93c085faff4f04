"""Usage reports: their arithmetic, their text, and the suggested next request."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.requests import parse_gpus, parse_memory
from commonage.domain.statuses import LastUse
from commonage.domain.usage import (
    Measured,
    Suggestion,
    UsageFigures,
    UsageReport,
    completed,
    cores_enough_for,
    hash_command,
    memory_text,
    request_for_peak,
    suggestion_of,
    sum_of,
    usage_report_in_words,
    with_measurement,
)
from commonage.testing import factories as make

USED = UsageFigures(measured_s=60, vram_s=60, vram_peak_mib=5000, gpu_s=60, gpu_busy_s=30, gpu_idle_s=6, energy_s=60,
               energy_j=36_000, memory_peak_mib=700, cpu_peak_milli=1900)  # fmt: skip


def usage_report(**fields: object) -> UsageReport:
    return make.usage_report(make.workload(), **{"figures": USED, "gpu_h": 0.42, **fields})


def suggested(*reports: UsageReport, gpus: str | None = None) -> Suggestion:
    suggestion = suggestion_of(reports, parse_gpus(gpus))
    assert suggestion is not None
    return suggestion


@pytest.mark.parametrize(
    ("peak", "enough"),
    [(1, 512), (700, 1024), (1700, 2048), (5000, 5632), (7400, 8192), (9000, 10 * 1024), (22_000, 24 * 1024)],
)
def test_request_for_a_peak_is_rounded_to_a_usual_size(peak: int, enough: int) -> None:
    assert request_for_peak(peak) == enough


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_request_for_a_peak_has_a_margin_and_fits_the_device(peak: int, device: int) -> None:
    enough = request_for_peak(peak)
    assert peak + 256 <= enough <= peak * 1.1 + 256 + 1024 + 1
    assert request_for_peak(peak, device) == min(enough, device)
    assert parse_memory(memory_text(enough)) == enough


@pytest.mark.parametrize(("peak", "cores"), [(0, 500), (600, 500), (994, 1000), (1100, 1000), (1130, 1500)])
def test_cores_for_a_peak_are_halves(peak: int, cores: int) -> None:
    assert cores_enough_for(peak) == cores


def test_unknown_measurements_add_nothing() -> None:
    known = with_measurement(UsageFigures(), Measured(10, 10, vram_mib=1000, vram_max_mib=600, gpu=0.5, energy_j=70))
    unknown = with_measurement(known, Measured(30, 40))
    assert (unknown.vram_s, unknown.gpu_s, unknown.energy_s, unknown.measured_s) == (10, 10, 10, 40)
    assert unknown.vram_mib_s / unknown.vram_s == 1000
    assert unknown.vram_peak_mib == 600
    assert unknown.gpu_idle_s == 0


def test_first_use_of_a_gpu_is_kept() -> None:
    waits = with_measurement(UsageFigures(), Measured(5, 5, vram_mib=0, gpu=0.0))
    assert waits.first_gpu_s is None
    uses = with_measurement(waits, Measured(5, 10, vram_mib=300, gpu=0.0))
    assert with_measurement(uses, Measured(5, 15, vram_mib=300, gpu=0.9)).first_gpu_s == 10
    assert uses.gpu_idle_s == 10


def test_sum_of_attempts_requests_what_the_last_did() -> None:
    workload = make.workload()
    figures = UsageFigures(cpu_s=2.0, vram_peak_mib=9, vram_s=1.0, first_gpu_s=3.0)
    first = make.usage_report(workload, 1, figures=figures, gpu_h=1.0, ended_at=2.0)
    figures = UsageFigures(cpu_s=1.0, vram_peak_mib=5, vram_s=1.0, first_gpu_s=4.0)
    last = make.usage_report(workload, 2, figures=figures, gpu_h=0.5, vram_mib=77)
    total = sum_of([first, last])
    assert total is not None
    assert (total.vram_peak_mib, total.gpu_h, total.vram_mib, total.ended_at) == (9, 1.5, 77, None)
    assert (total.figures.cpu_s, total.figures.vram_s, total.figures.first_gpu_s) == (3.0, 2.0, 3.0)
    assert sum_of([]) is None


def test_command_hash_depends_on_environment_and_every_argument() -> None:
    alike = hash_command("base", ["python", "train.py"])
    assert alike == hash_command("base", ("python", "train.py"))
    assert len({alike, hash_command("base", ["python train.py"]), hash_command("b", ["python", "train.py"])}) == 3
    assert hash_command("base", ["\ud800"])


def test_suggestion_follows_the_highest_peak_of_the_last_runs() -> None:
    low, high = usage_report(figures=replace(USED, vram_peak_mib=1000)), usage_report()
    suggestion = suggested(low, high, low, gpus="20GiB")
    assert (suggestion.gpus, suggestion.peak_mib, suggestion.workload_id) == ("5.5GiB", 5000, high.workload_id)
    assert (suggestion.runs, suggestion.memory_mib, suggestion.cpus_milli) == (3, 1024, 2000)
    assert suggestion.too_much
    assert suggestion.summary == "the last 3 runs of it used at most 5000 MiB of VRAM: 5.5 GiB will do"


@pytest.mark.parametrize(
    ("gpus", "too_much"), [("6GiB", False), ("8GiB", False), ("9GiB", True), ("1", True), ("0.5", True), (None, False)]
)
def test_request_far_above_the_peak_is_too_much(gpus: str | None, too_much: bool) -> None:
    assert suggested(usage_report(), gpus=gpus).too_much is too_much


def test_summary_warns_of_a_request_below_the_peak() -> None:
    assert suggested(usage_report(), gpus="4GiB").summary.endswith("4 GiB may be too little, 5.5 GiB will do")


def test_real_figures_precede_simulated_ones() -> None:
    simulated = usage_report(simulated=True, figures=replace(USED, vram_peak_mib=20_000))
    real = suggested(simulated, usage_report())
    assert (real.simulated, real.peak_mib) == (False, 5000)
    alone = suggested(simulated)
    assert alone.simulated
    assert "means nothing" in alone.summary


def test_suggests_nothing_without_measurements() -> None:
    assert suggestion_of([], None) is None
    assert suggestion_of([usage_report(figures=UsageFigures())], None) is None
    without_device = suggested(usage_report(devices=0, vram_mib=0))
    assert (without_device.gpus, without_device.summary) == (None, "")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {},
            "requested 8 GiB of GPU memory, peak 5000 MiB, 5.5 GiB would be enough; 0.42 GPU-hours; "
            "10.0 Wh; idle 10% of the",
        ),
        (
            {"vram_mib": 5120, "gpu_h": 0.001},
            "requested 5 GiB of GPU memory, peak 5000 MiB; less than 0.01 GPU-hours; 10.0 Wh;",
        ),
        ({"devices": 2, "gpu_h": 150.0}, "requested 8 GiB of GPU memory on each of 2 GPUs, peak 5000 MiB, "),
        (
            {"figures": UsageFigures(measured_s=5.0)},
            "requested 8 GiB of GPU memory; use was not measured; 0.42 GPU-hours",
        ),
        (
            {"figures": UsageFigures(), "ended_at": 2.0},
            "requested 8 GiB of GPU memory; use was not measured (the workload ended before the first measurement); ",
        ),
        ({"figures": UsageFigures(vram_s=5.0)}, "requested 8 GiB of GPU memory, used none; 0.42 GPU-hours"),
        ({"simulated": True}, "of the time (simulated GPU)"),
        ({"figures": replace(USED, over_share_s=90)}, "over its share for 1 min 30 s"),
        ({"devices": 0}, "requested 1 GiB of memory, peak 700 MiB"),
    ],
)
def test_describes_a_usage_report(fields: dict[str, object], words: str) -> None:
    assert words in usage_report_in_words(usage_report(**fields))


def test_cpu_peak_is_bounded() -> None:
    figures = completed(UsageFigures(), LastUse(cpu_s=2.0**53, memory_peak_mib=1), ran_s=2e-7)
    assert figures.cpu_peak_milli == 2**53
