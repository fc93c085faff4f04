import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.domain.workloads import WORKLOAD_ID_LENGTH, IdSequence, attempt_id, workload_of

ASKS = st.lists(st.tuples(st.floats(0, 4e9), st.integers(0, 1 << 40)), min_size=1, max_size=50)


@given(ASKS)
def test_ids_only_rise_whatever_the_clock_does(asks: list[tuple[float, int]]) -> None:
    ids = IdSequence()
    made = [ids.next(now, chance) for now, chance in asks]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {len(one) for one in made} == {WORKLOAD_ID_LENGTH}


@given(ASKS, st.floats(0, 4e9))
def test_ids_rise_over_a_restart(asks: list[tuple[float, int]], later: float) -> None:
    ids = IdSequence()
    last = [ids.next(now, chance) for now, chance in asks][-1]
    after = IdSequence()
    after.follow(last)
    assert after.next(later, 0) > last


def test_ids_sort_by_time() -> None:
    ids = IdSequence()
    assert ids.next(1_700_000_000.0, 10**6) < ids.next(1_700_000_000.002, 0)


def test_ten_thousand_of_one_instant() -> None:
    ids = IdSequence()
    made = [ids.next(1_700_000_000.0, 524_287), *(ids.next(1_700_000_000.0, 0) for _ in range(9_999))]
    assert len(set(made)) == 10_000
    assert made == sorted(made)


def test_the_workload_of_an_attempt() -> None:
    workload = IdSequence().next(1_700_000_000.0, 5)
    assert workload_of(attempt_id(workload, 12)) == workload


@pytest.mark.parametrize(
    "text", ["", "-1", "abc-1", "0123456789abc", "0123456789abc-", "0123456789abc-x", "0123456789abc-²"]
)
def test_what_is_no_attempt_id(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not the id of an attempt"):
        workload_of(text)
