import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.domain.workloads import Kind, State
from commonage.ports.store import Filter
from commonage.store.cursors import cursor_after, read_cursor
from commonage.testing.factories import workload_id


def test_cursor_returns_its_position() -> None:
    name = workload_id()
    assert read_cursor(cursor_after(name, Filter(owner="ann")), Filter(owner="ann")) == name


def test_order_within_a_filter_does_not_matter() -> None:
    name = workload_id()
    cursor = cursor_after(name, Filter(states=[State.QUEUED, State.HELD], kinds=(Kind.JOB,)))
    assert read_cursor(cursor, Filter(states={State.HELD, State.QUEUED}, kinds=[Kind.JOB])) == name


@pytest.mark.parametrize(
    "other",
    [
        Filter(),
        Filter(owner="bob"),
        Filter(tenant="ann"),
        Filter(text="ann"),
        Filter(owner="ann", states=[]),
        Filter(owner="ann", kinds=[]),
        Filter(owner="ann\ud800"),
    ],
)
def test_cursor_of_another_filter_is_refused(other: Filter) -> None:
    with pytest.raises(InvalidInput):
        read_cursor(cursor_after(workload_id(), Filter(owner="ann")), other)


@given(st.text())
def test_other_text_is_refused_with_a_short_message(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_cursor(text, Filter(owner="ann"))
    assert caught.value.problem_code == "invalid-cursor"
    assert len(caught.value.message) < 500
