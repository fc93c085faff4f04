"""Identifiers of workloads and attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.domain.workloads import WORKLOAD_ID_LENGTH, IdSequence, attempt_id, workload_of

TIMES = st.lists(st.tuples(st.floats(0, 4e9), st.integers(0, 1 << 40)), min_size=1, max_size=50)


@given(TIMES)
def test_ids_rise_even_if_the_clock_does_not(times: list[tuple[float, int]]) -> None:
    ids = IdSequence()
    made = [ids.next(now, chance) for now, chance in times]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {len(identifier) for identifier in made} == {WORKLOAD_ID_LENGTH}


@given(TIMES, st.floats(0, 4e9))
def test_ids_rise_over_a_restart(times: list[tuple[float, int]], later: float) -> None:
    ids = IdSequence()
    last = [ids.next(now, chance) for now, chance in times][-1]
    after = IdSequence()
    after.follow(last)
    assert after.next(later, 0) > last


def test_ten_thousand_ids_of_one_instant_differ_and_rise() -> None:
    ids = IdSequence()
    made = [ids.next(1_700_000_000.0, 524_287), *(ids.next(1_700_000_000.0, 0) for _ in range(9_999))]
    assert len(set(made)) == 10_000
    assert made == sorted(made)


def test_attempt_id_contains_its_workload() -> None:
    workload = IdSequence().next(1_700_000_000.0, 5)
    assert workload_of(attempt_id(workload, 12)) == workload


@pytest.mark.parametrize(
    "text", ["", "-1", "abc-1", "0123456789abc", "0123456789abc-", "0123456789abc-x", "0123456789abc-²"]
)
def test_refuses_text_that_is_no_attempt_id(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not the id of an attempt"):
        workload_of(text)
