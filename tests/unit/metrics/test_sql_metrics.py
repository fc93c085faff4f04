import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.metrics.sql_metrics import width_of


@pytest.mark.parametrize(
    ("span", "points", "width"),
    [
        (200, 200, 1),
        (201, 200, 2),
        (300, 60, 5),
        (3600, 200, 30),
        (86400, 200, 600),
        (86400, 1, 86400),
        (86401, 1, 2 * 86400),
    ],
)
def test_width_is_one_that_people_count_in(span: float, points: int, width: float) -> None:
    assert width_of(1000.0, 1000.0 + span, points) == width


def test_short_windows_are_divided_evenly() -> None:
    assert width_of(0, 10, 100) == 0.1


@given(st.floats(0, 4e9), st.floats(0.001, 1e9), st.integers(-5, 5000))
def test_buckets_are_never_more_than_asked(since: float, span: float, points: int) -> None:
    assert width_of(since, since + span, points) * max(1, points) >= (since + span - since) * (1 - 1e-9)
