"""What people read: quantities, times, and text of others that does no harm in a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.cli import show, usage


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (61, "1 min"), (3600, "1 h"), (5400, "1 h 30 min"), (90000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert show.duration(seconds) == text


def test_sizes() -> None:
    assert [show.memory(mib) for mib in (0, 512, 1024, 1536, 81920)] == [
        "0 MiB",
        "512 MiB",
        "1 GiB",
        "1.5 GiB",
        "80 GiB",
    ]
    assert [show.cpus(milli) for milli in (500, 1000, 2500)] == ["0.5", "1", "2.5"]


def test_states_have_colours_and_words() -> None:
    assert show.state("timed_out") == "[red]timed out[/]"
    assert show.state("strange") == "strange"


def test_figures_of_usage_are_for_people() -> None:
    assert [usage._amount(hours) for hours in (0, 1.4e-5, 0.00099, 0.0238, 12.345, 12345.6)] == [
        "0",
        "<0.0001",
        "0.00099",
        "0.0238",
        "12.3",
        "12346",
    ]


@given(st.text())
def test_text_of_others_moves_no_cursor(given_text: str) -> None:
    assert all(character.isprintable() for character in show.text(given_text))


def test_text_of_others_is_no_markup() -> None:
    assert show.text("[red]x[/]") == r"\[red]x\[/]"
