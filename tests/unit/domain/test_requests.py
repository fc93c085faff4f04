import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import MAX_LABELS, MAX_WHOLE_GPUS, GpuRequest, Request, parse_gpus, parse_labels


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("2", GpuRequest(whole=2)),
        (2, GpuRequest(whole=2)),
        (1.0, GpuRequest(whole=1)),
        ("1.0", GpuRequest(whole=1)),
        ("3/3", GpuRequest(whole=1)),
        ("0.25", GpuRequest(fraction_milli=250)),
        (0.25, GpuRequest(fraction_milli=250)),
        (".5", GpuRequest(fraction_milli=500)),
        ("1/3", GpuRequest(fraction_milli=333)),
        ("2/3", GpuRequest(fraction_milli=666)),
        ("6GiB", GpuRequest(vram_mib=6144)),
        ("6 GiB", GpuRequest(vram_mib=6144)),
        ("6G", GpuRequest(vram_mib=6144)),
        ("512MiB", GpuRequest(vram_mib=512)),
        ("A100", GpuRequest(whole=1, model="A100")),
        ("A100:2", GpuRequest(whole=2, model="A100")),
        (" A100 : 2 ", GpuRequest(whole=2, model="A100")),
        ("A100:0.5", GpuRequest(fraction_milli=500, model="A100")),
        ("A100:1/4", GpuRequest(fraction_milli=250, model="A100")),
        ("A100:6GiB", GpuRequest(vram_mib=6144, model="A100")),
        ("RTX 4090:1", GpuRequest(whole=1, model="RTX 4090")),
        ("A100 | H100:2", GpuRequest(whole=2, model="A100|H100")),
        ("A100|H100", GpuRequest(whole=1, model="A100|H100")),
        ("0", None),
        (0, None),
        (0.0, None),
        ("", None),
        ("  ", None),
        ("none", None),
        ("0/4", None),
        ("0.0", None),
        ("000", None),
        (None, None),
    ],
)
def test_gpus(text: str | float | None, request_: GpuRequest | None) -> None:
    assert parse_gpus(text) == request_


SHARES = "is not a share of a GPU; write 2 (GPUs), 0.25 or 1/3 (of a GPU), 6GiB (VRAM) or A100:1"
VRAM = "is not an amount of VRAM; write it like 6GiB or 512MiB, more than nothing"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-1", SHARES),
        (-1, SHARES),
        (-0.5, SHARES),
        (float("nan"), SHARES),
        (float("inf"), SHARES),
        ("1e3", SHARES),
        ("2 GPUs?", SHARES),
        ("٣", SHARES),
        ("6XiB", VRAM),
        ("0GiB", VRAM),
        ("999999999999PiB", VRAM),
        ("1/0", "divides by nothing"),
        ("1.5", "is more than one GPU; ask for whole GPUs (2) or a fraction of one (0.5)"),
        ("4/3", "is more than one GPU; ask for whole GPUs (2) or a fraction of one (0.5)"),
        ("0.0001", "is less than a thousandth of a GPU, the smallest share there is"),
        ("1/2000", "is less than a thousandth of a GPU, the smallest share there is"),
        ("6144", f"is more than {MAX_WHOLE_GPUS} GPUs; for VRAM add a unit, like 6144MiB"),
        ("A100:0", "asks for none of a model; leave it out, or ask for at least A100:1"),
        ("A100:", "asks for none of a model; leave it out, or ask for at least A100:1"),
        (":2", "names no model; write it like A100:2 or A100:6GiB"),
        ("A\x00B:2", "names no model; write it like A100:2 or A100:6GiB"),
        ("A100|:2", "names no model; write it like A100:2 or A100:6GiB"),
        ("é:2", "names no model; write it like A100:2 or A100:6GiB"),
    ],
)
def test_what_is_no_gpu_request(text: str | float, why: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_gpus(text)
    assert str(error.value) == f"gpus {str(text)!r} {why}"
    assert (error.value.problem_code, error.value.field) == ("invalid-gpus", "gpus")


MODELS = st.none() | st.sampled_from(["A100", "H100 80GB", "gfx90a/MI250", "A100|H100 80GB"])
GPUS = st.one_of(
    st.builds(GpuRequest, whole=st.integers(1, MAX_WHOLE_GPUS), model=MODELS),
    st.builds(GpuRequest, fraction_milli=st.integers(1, 999), model=MODELS),
    st.builds(GpuRequest, vram_mib=st.integers(1, 1 << 20), model=MODELS),
)


@given(GPUS)
def test_text_parses_back(gpu: GpuRequest) -> None:
    assert parse_gpus(gpu.text) == gpu


@given(GPUS, st.integers(1, 1 << 20))
def test_what_it_takes_of_a_device(gpu: GpuRequest, device_mib: int) -> None:
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


@given(st.text(max_size=40) | st.floats() | st.integers())
def test_anything_parses_or_is_refused_in_words(text: str | float) -> None:
    try:
        gpu = parse_gpus(text)
    except InvalidInput as error:
        assert error.problem_code == "invalid-gpus"
    else:
        assert gpu is None or parse_gpus(gpu.text) == gpu


@pytest.mark.parametrize(
    ("text", "words"),
    [("1", "1 whole GPU"), ("A100:2", "2 whole GPUs (A100)"), ("6GiB", "6 GiB of VRAM"), ("1/3", "0.333 of a GPU"),
     ("A30:0.5", "0.5 of a GPU (A30)"), ("A100|H100:2", "2 whole GPUs (A100 or H100)")],
)  # fmt: skip
def test_in_words(text: str, words: str) -> None:
    assert str(parse_gpus(text)) == words


def test_a_request_in_words() -> None:
    assert str(Request(1000, 2048)) == "1 CPU, 2 GiB of memory"
    assert str(Request(1500, 512, parse_gpus("6GiB"))) == "1.5 CPUs, 512 MiB of memory, 6 GiB of VRAM"
    where = Request(1000, 512, parse_gpus("2"), (("zone", "basement"),), one_numa=True)
    assert str(where) == "1 CPU, 512 MiB of memory, 2 whole GPUs on one NUMA node, zone=basement"


def test_labels_are_sorted_and_trimmed() -> None:
    assert parse_labels([(" zone", "basement "), ("nvidia.com/gpu", "x y")]) == (
        ("nvidia.com/gpu", "x y"),
        ("zone", "basement"),
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([("a b", "c")], "'a b' is no name of a label"),
        ([("", "c")], "'' is no name of a label"),
        ([("a", "")], "a='' is no label; its value has 1 to 128"),
        ([("a", "x\ny")], "is no label"),
        ([(f"a{n}", "x") for n in range(MAX_LABELS + 1)], "has 17 labels; at most 16 are allowed"),
    ],
)
def test_what_is_no_label(given: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_labels(given, field="on")
    assert why in str(error.value)
    assert (error.value.problem_code, error.value.field) == ("invalid-label", "on")
