"""Quantities as users type them, GPU requests, labels, and the part of a device that a request takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device, Share
from commonage.domain.requests import (
    MAX_LABELS,
    MAX_WHOLE_GPUS,
    GpuRequest,
    Part,
    Request,
    format_cpus,
    format_duration,
    format_memory,
    parse_cpus,
    parse_duration,
    parse_gpus,
    parse_labels,
    parse_memory,
    part_of,
)
from commonage.units import MAX_DURATION_S, MAX_MEMORY_MIB

Parser = Callable[..., Any]

# --- quantities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mib", "texts"),
    [
        (6144, ["6GiB", "6 GiB", "6gib", "6G", "6Gi"]),
        (512, ["512MiB", "512m", "512", 512]),
        (1024, [" 1GiB ", "1.0GiB"]),
        (1536, ["1.5GiB"]),
        (1908, ["2GB"]),
        (1, ["1b", "1KiB"]),
        (2, ["1025KiB"]),
        (1024 * 1024, ["1T"]),
    ],
)
def test_parses_memory(mib: int, texts: list[str | int]) -> None:
    assert [parse_memory(text) for text in texts] == [mib] * len(texts)


@pytest.mark.parametrize(
    ("text", "milli"),
    [("2", 2000), ("0.5", 500), (".5", 500), ("2.", 2000), ("1500m", 1500), (2, 2000), (0.25, 250), (1e-3, 1),
     ("0.0001", 1), ("1m", 1), ("10000", 10_000_000)],
)  # fmt: skip
def test_parses_cpus(text: str | float, milli: int) -> None:
    assert parse_cpus(text) == milli


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("1h30m", 5400), ("1h 30m", 5400), ("2d", 172800), ("45s", 45), ("366d", MAX_DURATION_S),
     ("5 min 30 s", 330), ("90:00", 5400), ("01:30", 90), ("01:30:05", 5405), ("1-12", 129_600), ("1-00:00", 86_400),
     ("1-02:03:04", 93_784)],
)  # fmt: skip
def test_parses_durations_also_as_slurm_writes_them(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


NO_MEMORY = ("", "GiB", "6XiB", "6i", "6ib", "1e3", "six", "6GiB6", "٣GiB", "--1GiB", "1_000", "6 G iB")
NO_CPUS = ("", "m", "two", "1e3", "nan", "inf", float("nan"), "1e999999999", "1_0", "٣", "1,5")
NO_DURATION = ("", "-", "--5m", "5x", "soon", "1h1d", "1:2:3:4", "5m5m", "nan", "1e3", "m", "1.5h")


@pytest.mark.parametrize(
    ("parse", "text", "message", "code", "field"),
    [
        *((parse_memory, text, f"memory {text!r} is not an amount of memory. Write it like 6GiB or 512MiB.",
           "invalid-memory", "memory") for text in NO_MEMORY),
        *((parse_cpus, text, f"cpus '{text}' is not a number of cores; write it like 2, 0.5 or 1500m",
           "invalid-cpus", "cpus") for text in NO_CPUS),
        *((parse_duration, text, f"time {text!r} is not a duration. Write it like 90s, 30m, 1h30m, 2d or 01:30:00.",
           "invalid-time", "time") for text in NO_DURATION),
    ],
)  # fmt: skip
def test_refuses_text_that_is_no_quantity(parse: Parser, text: str, message: str, code: str, field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse(text)
    assert (str(error.value), error.value.problem_code, error.value.field) == (message, code, field)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        *((parse_memory, text, "must be above zero and at most 1024 PiB, not")
          for text in ("0", "0GiB", 0, -5, "-6GiB", "999999999999PiB", 2**63)),
        *((parse_cpus, text, f"cpus must be above 0 and at most 10000 cores, not '{text}'")
          for text in ("0", "-1", 0, -0.5, "0m", "-500m", "10000.1", "999999999")),
        *((parse_duration, text, f"time must be above zero and at most 366 days, not '{text}'.")
          for text in ("0s", "-5m", "-01:30:00", "367d", "00:00")),
    ],
)  # fmt: skip
def test_refuses_quantities_out_of_bounds(parse: Parser, text: str | float, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse(text)
    assert message in str(error.value)
    assert str(text) in str(error.value)


@pytest.mark.parametrize("parse", [parse_memory, parse_cpus, parse_duration])
def test_shortens_long_input_in_the_message(parse: Parser) -> None:
    with pytest.raises(InvalidInput) as error:
        parse("-" * 100_000)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("text", "example"), [("90", "90"), (" 5 ", "5"), ("1.5", "90"), ("-5", "90"), ("0", "90"), ("1" * 12, "1" * 12)]
)
def test_refuses_a_duration_without_unit_with_an_example(text: str, example: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_duration(text, field="--time")
    assert str(error.value) == (
        f"--time {text.strip()} has no unit. Write {example}m for minutes or {example}s for seconds."
    )


def test_allows_a_duration_of_zero_on_request() -> None:
    assert [parse_duration(text, zero=True) for text in ("0", "0s", "00:00", "1s")] == [0, 0, 0, 1]
    with pytest.raises(InvalidInput, match="must be at least zero"):
        parse_duration("-1s", zero=True)


def test_error_names_the_callers_field() -> None:
    with pytest.raises(InvalidInput) as error:
        parse_duration("soon", field="grace")
    assert error.value.field == "grace"
    assert str(error.value).startswith("grace 'soon'")


@pytest.mark.parametrize(
    ("mib", "text"),
    [(1, "1 MiB"), (1023, "1023 MiB"), (1024, "1 GiB"), (1536, "1.5 GiB"), (1100, "1100 MiB"), (81920, "80 GiB"),
     (24564, "23.9 GiB"), (143771, "140.4 GiB"), (1024 * 1024, "1024 GiB")],
)  # fmt: skip
def test_formats_memory(mib: int, text: str) -> None:
    assert format_memory(mib) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (45, "45 s"), (59.6, "1 min"), (61, "1 min 1 s"), (720, "12 min"), (725, "12 min"),
     (5400, "1 h 30 min"), (7200, "2 h"), (2 * 86400 + 4 * 3600, "2 d 4 h"), (86400, "1 d")],
)  # fmt: skip
def test_formats_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(1, MAX_MEMORY_MIB))
def test_formatted_memory_parses_to_the_same_or_slightly_less(mib: int) -> None:
    assert 0 <= mib - parse_memory(format_memory(mib)) <= (103 if mib >= 10 * 1024 else 0)


@given(st.integers(1, 10_000_000))
def test_formatted_cpus_parse_to_the_same(milli: int) -> None:
    assert parse_cpus(format_cpus(milli)) == milli
    assert parse_cpus(f"{milli}m") == milli


@given(st.integers(1, MAX_DURATION_S))
def test_formatted_durations_parse_to_nearly_the_same(seconds: int) -> None:
    exact = 1 if seconds < 600 else 60 if seconds < 86400 else 3600
    assert abs(parse_duration(format_duration(seconds)) - seconds) < exact


@given(st.text(max_size=80))
def test_any_text_parses_or_is_refused_with_a_message(text: str) -> None:
    for parse in (parse_memory, parse_cpus, parse_duration):
        try:
            assert parse(text) > 0
        except InvalidInput as error:
            assert error.message


# --- GPU requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "texts"),
    [
        (GpuRequest(whole=2), ["2", 2]),
        (GpuRequest(whole=1), [1.0, "1.0", "3/3"]),
        (GpuRequest(fraction_milli=250), ["0.25", 0.25]),
        (GpuRequest(fraction_milli=500), [".5"]),
        (GpuRequest(fraction_milli=333), ["1/3"]),
        (GpuRequest(fraction_milli=666), ["2/3"]),
        (GpuRequest(vram_mib=6144), ["6GiB", "6 GiB", "6G"]),
        (GpuRequest(vram_mib=512), ["512MiB"]),
        (GpuRequest(whole=1, model="A100"), ["A100"]),
        (GpuRequest(whole=2, model="A100"), ["A100:2", " A100 : 2 "]),
        (GpuRequest(fraction_milli=500, model="A100"), ["A100:0.5"]),
        (GpuRequest(fraction_milli=250, model="A100"), ["A100:1/4"]),
        (GpuRequest(vram_mib=6144, model="A100"), ["A100:6GiB"]),
        (GpuRequest(whole=1, model="RTX 4090"), ["RTX 4090:1"]),
        (GpuRequest(whole=2, model="A100|H100"), ["A100 | H100:2"]),
        (GpuRequest(whole=1, model="A100|H100"), ["A100|H100"]),
        (None, ["0", 0, 0.0, "", "  ", "none", "0/4", "0.0", "000", None]),
    ],
)
def test_parses_gpu_requests(request_: GpuRequest | None, texts: list[str | float | None]) -> None:
    assert [parse_gpus(text) for text in texts] == [request_] * len(texts)


REFUSED_GPUS = {
    "is not a share of a GPU; write 2 (GPUs), 0.25 or 1/3 (of a GPU), 6GiB (VRAM) or A100:1": (
        "-1", -1, -0.5, float("nan"), float("inf"), "1e3", "2 GPUs?", "٣"
    ),
    "is not an amount of VRAM; write it like 6GiB or 512MiB, above 0": ("6XiB", "0GiB", "999999999999PiB"),
    "divides by nothing": ("1/0",),
    "is more than one GPU; request whole GPUs (2) or a fraction of one (0.5)": ("1.5", "4/3"),
    "is less than a thousandth of a GPU, which is the smallest share": ("0.0001", "1/2000"),
    f"is more than {MAX_WHOLE_GPUS} GPUs; for VRAM add a unit, like 6144MiB": ("6144",),
    "requests no GPU of a model; leave it out, or request at least A100:1": ("A100:0", "A100:"),
    "names no model; write it like A100:2 or A100:6GiB": (":2", "A\x00B:2", "A100|:2", "é:2"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "why"), [(text, why) for why, texts in REFUSED_GPUS.items() for text in texts])
def test_refuses_text_that_is_no_gpu_request(text: str | float, why: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_gpus(text)
    assert str(error.value) == f"gpus {str(text)!r} {why}"
    assert (error.value.problem_code, error.value.field) == ("invalid-gpus", "gpus")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A" * 241 + ":1", "names models in 241 characters; at most 240 are allowed"),
        ("|".join(f"A{one}" for one in range(17)), "names 17 models; at most 16 are allowed"),
    ],
)
def test_bounds_the_models_of_a_gpu_request(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_gpus(text)


def test_repeated_model_counts_once() -> None:
    assert parse_gpus("|".join(["A100"] * 20) + ":2") == GpuRequest(whole=2, model="A100")


MODELS = st.none() | st.sampled_from(["A100", "H100 80GB", "gfx90a/MI250", "A100|H100 80GB"])
GPUS = st.one_of(
    st.builds(GpuRequest, whole=st.integers(1, MAX_WHOLE_GPUS), model=MODELS),
    st.builds(GpuRequest, fraction_milli=st.integers(1, 999), model=MODELS),
    st.builds(GpuRequest, vram_mib=st.integers(1, 1 << 20), model=MODELS),
)


@given(GPUS)
def test_text_of_a_gpu_request_parses_back(gpu: GpuRequest) -> None:
    assert parse_gpus(gpu.text) == gpu


@given(st.text(max_size=40) | st.floats() | st.integers())
def test_any_gpu_text_parses_or_is_refused_with_its_code(text: str | float) -> None:
    try:
        gpu = parse_gpus(text)
    except InvalidInput as error:
        assert error.problem_code == "invalid-gpus"
    else:
        assert gpu is None or parse_gpus(gpu.text) == gpu


@given(GPUS, st.integers(1, 1 << 20))
def test_takes_at_most_the_requested_part_of_a_device(gpu: GpuRequest, device_mib: int) -> None:
    compute = gpu.compute_on(device_mib)
    assert 1 <= compute <= 1000
    if gpu.whole:
        assert (gpu.memory_on(device_mib), compute) == (device_mib, 1000)
    elif gpu.fraction_milli:
        assert gpu.memory_on(device_mib) * 1000 <= device_mib * gpu.fraction_milli
    else:
        assert gpu.memory_on(device_mib) == gpu.vram_mib


@given(st.integers(1, 64))
def test_n_equal_slots_fit_one_device(slots: int) -> None:
    gpu = parse_gpus(f"1/{slots}")
    assert gpu is not None
    assert gpu.memory_on(24576) * slots <= 24576
    assert gpu.compute_on(24576) * slots <= 1000


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (parse_gpus("1"), "1 whole GPU"),
        (parse_gpus("A100:2"), "2 whole GPUs (A100)"),
        (parse_gpus("6GiB"), "6 GiB of VRAM"),
        (parse_gpus("1/3"), "0.333 of a GPU"),
        (parse_gpus("A30:0.5"), "0.5 of a GPU (A30)"),
        (parse_gpus("A100|H100:2"), "2 whole GPUs (A100 or H100)"),
        (Request(1000, 2048), "1 CPU, 2 GiB of memory"),
        (Request(1500, 512, parse_gpus("6GiB")), "1.5 CPUs, 512 MiB of memory, 6 GiB of VRAM"),
        (
            Request(1000, 512, parse_gpus("2"), (("zone", "basement"),), one_numa=True),
            "1 CPU, 512 MiB of memory, 2 whole GPUs on one NUMA node, zone=basement",
        ),
    ],
)
def test_describes_a_request(request_: GpuRequest | Request, words: str) -> None:
    assert str(request_) == words


# --- labels -----------------------------------------------------------------------------------------------------------


def test_sorts_and_trims_labels() -> None:
    labels = parse_labels([(" zone", "basement "), ("nvidia.com/gpu", "x y")])
    assert labels == (("nvidia.com/gpu", "x y"), ("zone", "basement"))


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([("a b", "c")], "'a b' is not the name of a label"),
        ([("", "c")], "'' is not the name of a label"),
        ([("a", "")], "a='' is not a label; a value has 1 to 128"),
        ([("a", "x\ny")], "is not a label"),
        ([(f"a{n}", "x") for n in range(MAX_LABELS + 1)], "has 17 labels; at most 16 are allowed"),
    ],
)
def test_refuses_invalid_labels(pairs: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_labels(pairs, field="on")
    assert why in str(error.value)
    assert (error.value.problem_code, error.value.field) == ("invalid-label", "on")


# --- the part of a device ---------------------------------------------------------------------------------------------

DEVICE = Device("GPU-1", 0, "A100", 12 * 1024)
SLOTTED = replace(DEVICE, slots=3)
INSTANCE = Device("MIG-1", 0, "A100 1g.10gb", 9856, mig_profile="1g.10gb", parent_uuid="GPU-9", parent_memory_mib=81920)


@pytest.mark.parametrize(
    ("device", "texts", "part"),
    [
        (SLOTTED, ["1/3", "4GiB", "0.333", "0.1", "1GiB"], Part(4096, 333)),
        (SLOTTED, ["0.5", "5GiB", "8GiB"], Part(8192, 666)),
        (SLOTTED, ["0.9", "12GiB"], Part(12288, 1000)),
        (SLOTTED, ["13GiB"], None),
        (DEVICE, ["6GiB"], Part(6144, 500)),
        (DEVICE, ["0.25"], Part(3072, 250)),
        (DEVICE, ["2"], Part(12288, 1000, whole=True)),
        (DEVICE, ["13GiB"], None),
        (INSTANCE, ["1/8", "2GiB"], Part(9856, 1000, whole=True)),
        (INSTANCE, ["0.25", "1", "13GiB"], None),
        (replace(DEVICE, memory_mib=0), ["1"], None),
    ],
)
def test_part_of_a_device(device: Device, texts: list[str], part: Part | None) -> None:
    """Whole slots of a device with slots, a whole instance if it is as large, and else the requested amount."""
    for text in texts:
        gpu = parse_gpus(text)
        assert gpu is not None
        assert part_of(device, gpu) == part


def test_label_names_device_and_instance() -> None:
    assert (DEVICE.label, replace(INSTANCE, index=203).label) == ("0", "1:3")
    share = Share("MIG-1", 203, "A100", 1024, 1000, whole=True, device_memory_mib=1024)
    assert (share.label, replace(share, device_uuid="GPU-1", device_index=203).label) == ("1:3", "203")
