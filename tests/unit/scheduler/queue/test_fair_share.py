"""Fair share: decaying usage."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB, NOW, clusters

from commonage.domain.nodes import Node
from commonage.domain.tenants import Amounts
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.queue.fair_share import MAX_HALF_LIVES, Capacity, Usage
from commonage.testing import factories

HOUR = 3600.0


def usage(penalty_s: float = 0.0) -> Usage:
    return Usage(half_life_s=HOUR, entry_penalty_s=penalty_s)


def test_debt_grows_with_an_allocation_and_then_halves() -> None:
    books = usage()
    books.begin("a-1", "lab", "ann", 0.5, NOW)
    assert books.debt("lab", "ann", NOW + 10) == pytest.approx(0.5 * 10, rel=1e-2)
    for_ever = books.debt("lab", "ann", NOW + 100 * HOUR)
    assert for_ever == pytest.approx(0.5 * HOUR / log(2))
    books.end("a-1", NOW + 100 * HOUR)
    assert books.debt("lab", "ann", NOW + 101 * HOUR) == pytest.approx(for_ever / 2)


def test_start_is_charged_the_entry_penalty() -> None:
    books = usage(penalty_s=600.0)
    books.begin("a-1", "lab", "ann", 0.25, NOW)
    assert books.debt("lab", "ann", NOW) == pytest.approx(150.0)
    books.begin("a-1", "lab", "ann", 0.25, NOW + 5)
    assert books.debt("lab", "ann", NOW) == pytest.approx(150.0), "repeated report"
    books.end("b-1", NOW)
    assert books.debt("lab", "eve", NOW) == 0.0


def test_debt_of_a_tenant_is_the_sum_of_its_users() -> None:
    books = usage(penalty_s=100.0)
    for number, (tenant, owner) in enumerate([("lab", "ann"), ("lab", "bob"), ("bio", "ann")]):
        books.begin(f"{number}-1", tenant, owner, 0.1, NOW)
    own, of_tenants = books.debts(NOW)
    assert dict(zip(books.tenants, of_tenants, strict=True)) == pytest.approx({"lab": 20.0, "bio": 10.0})
    assert own.tolist() == pytest.approx([10.0, 10.0, 10.0])


HOLDS = st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 50), st.floats(0.001, 1)), min_size=1, max_size=20)


@given(HOLDS, st.randoms())
def test_debt_is_independent_of_the_order_of_reports(holds: list[tuple[float, float, float]], chance: object) -> None:
    """Reported as it happens, or later from the store."""
    live, later = usage(60.0), usage(60.0)
    events = []
    for number, (since, length, share) in enumerate(holds):
        begin, end = NOW + since * HOUR, NOW + (since + length) * HOUR
        events += [(begin, number, True), (end, number, False)]
        later.begin(f"{number}-1", "lab", "ann", share, begin)
        later.end(f"{number}-1", end)
    for at, number, begins in sorted(events):
        if begins:
            live.begin(f"{number}-1", "lab", "ann", holds[number][2], at)
        else:
            live.end(f"{number}-1", at)
    now = NOW + 101 * HOUR
    expected = sum(_long_way(since, length, share, 101.0) for since, length, share in holds)
    assert live.debt("lab", "ann", now) == pytest.approx(expected, rel=1e-4, abs=1e-3)
    assert later.debt("lab", "ann", now) == pytest.approx(expected, rel=1e-4, abs=1e-3)


def _long_way(since: float, length: float, share: float, now: float) -> float:
    """Hour by hour: what is held in an hour fades from then on; the penalty from the start on."""
    steps = 2000
    part = length / steps
    allocated = sum(share * part * HOUR * 2.0 ** -(now - since - (step + 0.5) * part) for step in range(steps))
    return allocated + share * 60.0 * 2.0 ** -(now - since)


def test_debt_stays_finite_over_years() -> None:
    books = usage()
    for year in range(30):
        at = NOW + year * 8766 * HOUR
        books.begin(f"{year}-1", "lab", "ann", 1.0, at)
        books.end(f"{year}-1", at + HOUR)
    last = NOW + 29 * 8766 * HOUR + HOUR
    assert books.debt("lab", "ann", last) == pytest.approx(HOUR / log(2) / 2)
    assert books.debt("lab", "ann", last + 2 * MAX_HALF_LIVES * HOUR) == pytest.approx(0.0, abs=1e-9)


def test_dominant_share_is_the_largest_part() -> None:
    grid = Grid([factories.node("a", 4, cpus_milli=10_000, memory_mib=10 * GIB), factories.node("b", 0)])
    cluster = Capacity.of(grid)
    assert cluster == Capacity(18_000, 42 * GIB, 4000)
    assert cluster.share(Amounts(1800, GIB)) == pytest.approx(0.1)
    assert cluster.share(Amounts(1800, GIB, 1000, 24 * GIB)) == pytest.approx(0.25)
    assert Capacity().share(Amounts(1000)) == 1.0, "before a node has reported"


@given(clusters())
def test_share_is_at_most_one(nodes: list[Node]) -> None:
    cluster = Capacity.of(Grid(nodes))
    assert 0.0 <= cluster.share(Amounts(500, GIB, 1000)) <= 1.0
