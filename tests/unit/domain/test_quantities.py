import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import (
    format_cpus,
    format_duration,
    format_memory,
    parse_cpus,
    parse_duration,
    parse_memory,
)
from commonage.units import MAX_DURATION_S, MAX_MEMORY_MIB


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("6GiB", 6144),
        ("6 GiB", 6144),
        ("6gib", 6144),
        ("6G", 6144),
        ("6Gi", 6144),
        ("512MiB", 512),
        ("512m", 512),
        ("512", 512),
        (512, 512),
        ("1.5GiB", 1536),
        ("2GB", 1908),
        ("1b", 1),
        ("1KiB", 1),
        ("1025KiB", 2),
        ("1T", 1024 * 1024),
        (" 1GiB ", 1024),
    ],
)
def test_memory(text: str | int, mib: int) -> None:
    assert parse_memory(text) == mib


@pytest.mark.parametrize(
    "text", ["", "GiB", "6XiB", "6i", "6ib", "1e3", "six", "6GiB6", "٣GiB", "--1GiB", "1_000", "6 G iB"]
)
def test_what_is_no_memory(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_memory(text)
    assert str(error.value) == f"memory {text!r} is not an amount of memory. Write it like 6GiB or 512MiB."
    assert (error.value.problem_code, error.value.field) == ("invalid-memory", "memory")


@pytest.mark.parametrize("text", ["0", "0GiB", 0, -5, "-6GiB", "999999999999PiB", 2**63])
def test_memory_out_of_bounds(text: str | int) -> None:
    with pytest.raises(InvalidInput, match="must be above zero and at most 1024 PiB, not") as error:
        parse_memory(text)
    assert str(text) in str(error.value)


def test_long_nonsense_is_cut_in_the_sentence() -> None:
    for parse in (parse_memory, parse_cpus, parse_duration):
        with pytest.raises(InvalidInput) as error:
            parse("-" * 100_000)
        assert len(str(error.value)) < 200


@given(st.integers(1, MAX_MEMORY_MIB))
def test_formatted_memory_parses_to_the_same_or_a_little_less(mib: int) -> None:
    again = parse_memory(format_memory(mib))
    assert again <= mib
    assert mib - again <= (103 if mib >= 10 * 1024 else 0)


@pytest.mark.parametrize(
    ("mib", "text"),
    [(1, "1 MiB"), (1023, "1023 MiB"), (1024, "1 GiB"), (1536, "1.5 GiB"), (1100, "1100 MiB"), (81920, "80 GiB"),
     (24564, "23.9 GiB"), (143771, "140.4 GiB"), (1024 * 1024, "1024 GiB")],
)  # fmt: skip
def test_memory_for_reading(mib: int, text: str) -> None:
    assert format_memory(mib) == text


@pytest.mark.parametrize(
    ("text", "milli"),
    [("2", 2000), ("0.5", 500), (".5", 500), ("2.", 2000), ("1500m", 1500), (2, 2000), (0.25, 250), (1e-3, 1),
     ("0.0001", 1), ("1m", 1), ("10000", 10_000_000)],
)  # fmt: skip
def test_cpus(text: str | float, milli: int) -> None:
    assert parse_cpus(text) == milli


@pytest.mark.parametrize("text", ["", "m", "two", "1e3", "nan", "inf", float("nan"), "1e999999999", "1_0", "٣", "1,5"])
def test_what_is_no_number_of_cores(text: str | float) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_cpus(text)
    assert str(error.value) == f"cpus '{text}' is not a number of cores; write it like 2, 0.5 or 1500m"
    assert (error.value.problem_code, error.value.field) == ("invalid-cpus", "cpus")


@pytest.mark.parametrize("text", ["0", "-1", 0, -0.5, "0m", "-500m", "10000.1", "999999999"])
def test_cpus_out_of_bounds(text: str | float) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_cpus(text)
    assert str(error.value) == f"cpus must be more than nothing and at most 10000 cores, not '{text}'"


@given(st.integers(1, 10_000_000))
def test_formatted_cpus_parse_to_the_same(milli: int) -> None:
    assert parse_cpus(format_cpus(milli)) == milli
    assert parse_cpus(f"{milli}m") == milli


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("1h30m", 5400), ("1h 30m", 5400), ("2d", 172800), ("45s", 45), ("366d", MAX_DURATION_S),
     ("5 min 30 s", 330)],
)  # fmt: skip
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-", "--5m", "5x", "soon", "1h1d", "1:2:3:4", "5m5m", "nan", "1e3", "m", "1.5h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_duration(text)
    assert str(error.value) == f"time {text!r} is not a duration. Write it like 90s, 30m, 1h30m, 2d or 01:30:00."
    assert (error.value.problem_code, error.value.field) == ("invalid-time", "time")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90:00", 5400),
        ("01:30", 90),
        ("01:30:05", 5405),
        ("1-12", 129_600),
        ("1-00:00", 86_400),
        ("1-02:03:04", 93_784),
    ],
)
def test_durations_of_slurm_keep_their_meaning(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "example"), [("90", "90"), (" 5 ", "5"), ("1.5", "90"), ("-5", "90"), ("0", "90"), ("1" * 12, "1" * 12)]
)
def test_a_duration_without_a_unit_is_refused_with_an_example(text: str, example: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_duration(text, field="--time")
    assert str(error.value) == (
        f"--time {text.strip()} has no unit. Write {example}m for minutes or {example}s for seconds."
    )


def test_a_pause_may_be_zero() -> None:
    assert [parse_duration(text, zero=True) for text in ("0", "0s", "00:00", "1s")] == [0, 0, 0, 1]
    with pytest.raises(InvalidInput, match="must be at least zero"):
        parse_duration("-1s", zero=True)


@pytest.mark.parametrize("text", ["0s", "-5m", "-01:30:00", "367d", "00:00"])
def test_durations_out_of_bounds(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_duration(text)
    assert str(error.value) == f"time must be above zero and at most 366 days, not '{text}'."


def test_the_field_is_named_as_the_caller_calls_it() -> None:
    with pytest.raises(InvalidInput) as error:
        parse_duration("soon", field="grace")
    assert error.value.field == "grace"
    assert str(error.value).startswith("grace 'soon'")


@given(st.integers(1, MAX_DURATION_S))
def test_formatted_durations_parse_to_nearly_the_same(seconds: int) -> None:
    exact = 1 if seconds < 600 else 60 if seconds < 86400 else 3600
    assert abs(parse_duration(format_duration(seconds)) - seconds) < exact


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (45, "45 s"), (59.6, "1 min"), (61, "1 min 1 s"), (720, "12 min"), (725, "12 min"),
     (5400, "1 h 30 min"), (7200, "2 h"), (2 * 86400 + 4 * 3600, "2 d 4 h"), (86400, "1 d")],
)  # fmt: skip
def test_durations_for_reading(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.text(max_size=80))
def test_any_text_parses_or_is_refused_in_words(text: str) -> None:
    for parse in (parse_memory, parse_cpus, parse_duration):
        try:
            assert parse(text) > 0
        except InvalidInput as error:
            assert error.message
