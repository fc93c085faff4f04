"""Formatting: quantities, times, and untrusted text in a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.cli import output, tenant


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (61, "1 min"), (3600, "1 h"), (5400, "1 h 30 min"), (90000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_sizes() -> None:
    assert [output.memory(mib) for mib in (0, 512, 1024, 1536, 81920)] == [
        "0 MiB",
        "512 MiB",
        "1 GiB",
        "1.5 GiB",
        "80 GiB",
    ]
    assert [output.cpus(milli) for milli in (500, 1000, 2500)] == ["0.5", "1", "2.5"]


def test_states_have_colors() -> None:
    assert output.state("timed_out") == "[red]timed out[/]"
    assert output.state("strange") == "strange"


def test_usage_is_rounded() -> None:
    assert [tenant.hours_text(hours) for hours in (0, 1.4e-5, 0.00099, 0.0238, 12.345, 12345.6)] == [
        "0",
        "<0.0001",
        "0.00099",
        "0.0238",
        "12.3",
        "12346",
    ]


@given(st.text())
def test_untrusted_text_has_no_control_characters(given_text: str) -> None:
    assert all(character.isprintable() for character in output.text(given_text))


def test_untrusted_text_is_not_markup() -> None:
    assert output.text("[red]x[/]") == r"\[red]x\[/]"
