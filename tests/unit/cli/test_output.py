"""Formatting: quantities, times, and untrusted text in a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.cli import output, tenant
from commonage.wire.workloads import ExplanationOut


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (61, "1 min"), (3600, "1 h"), (5400, "1 h 30 min"), (90000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


@pytest.mark.parametrize(
    ("mib", "text"), [(0, "0 MiB"), (512, "512 MiB"), (1024, "1 GiB"), (1536, "1.5 GiB"), (81920, "80 GiB")]
)
def test_memory(mib: int, text: str) -> None:
    assert output.memory(mib) == text


@pytest.mark.parametrize(("milli", "text"), [(500, "0.5"), (1000, "1"), (2500, "2.5")])
def test_cpus(milli: int, text: str) -> None:
    assert output.cpus(milli) == text


def test_explanation_lists_each_site() -> None:
    reason = {"code": "NodeDraining", "params": {}, "message": "Node n is draining."}
    explained = ExplanationOut.model_validate(
        {
            "workload_id": None, "state": None, "summary": "Position 1.", "startable_now": False, "position": 1,
            "queue_length": 1, "reasons": [reason], "holders": [], "fits_now": None, "fits_now_gpus": None,
            "expected_start_at": None, "basis": None,
            "sites": [
                {"site": "north", "is_candidate": True, "reason": reason, "free_at": None, "text": ""},
                {"site": "south", "is_candidate": True, "reason": reason, "free_at": 0.0, "text": ""},
            ],
        }
    )  # fmt: skip
    lines = output.explanation(explained)
    assert lines[:3] == ["Position 1.", "Sites:", "  north: Node n is draining."]
    assert lines[3] == f"  south: Node n is draining. Room: {output.clock(0.0)} at the latest."


def test_states_have_colors() -> None:
    assert output.state("timed_out") == "[red]timed out[/]"
    assert output.state("strange") == "strange"


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0, "0"), (1.4e-5, "<0.0001"), (0.00099, "0.00099"), (0.0238, "0.0238"), (12.345, "12.3"), (12345.6, "12346")],
)
def test_usage_is_rounded(hours: float, text: str) -> None:
    assert tenant.hours_text(hours) == text


@given(st.text())
def test_untrusted_text_has_no_control_characters(given_text: str) -> None:
    assert all(character.isprintable() for character in output.text(given_text))


def test_untrusted_text_is_not_markup() -> None:
    assert output.text("[red]x[/]") == r"\[red]x\[/]"
