"""Turns within a pass, and the places that they prefer."""

import numpy as np

from commonage.scheduler.fit.affinity import nearest
from commonage.scheduler.queue.equivalence_classes import EquivalenceClasses
from commonage.scheduler.queue.queue import QueueOrder

HERE = np.ones(3, np.bool_)
NOBODY = np.zeros(0, np.int64)


def order(sorts: list[int], limits: list[float], accounts: list[int] | None = None) -> QueueOrder:
    n = len(sorts)
    columns = (np.array(sorts), np.array(accounts or [0] * n), np.array(limits, np.float64), np.ones(n, np.bool_))
    return QueueOrder(0.0, 0, np.arange(n), *columns)


def test_the_first_of_each_class_has_a_turn_in_order() -> None:
    equivalence_classes = EquivalenceClasses(
        order([1, 0, 1, 2, 0], [9.0] * 5), np.array([True, True, False]), NOBODY, apart=False
    )
    seen = []
    while (turn := equivalence_classes.next()) is not None:
        seen.append(turn[0])
        equivalence_classes.started(turn[1])
    assert seen == [0, 1, 2, 4], "the fourth fits nowhere"


def test_what_is_refused_to_one_is_refused_to_who_asks_it_for_longer() -> None:
    equivalence_classes = EquivalenceClasses(order([0] * 6, [50, 60, 10, np.inf, 20, 5]), HERE, NOBODY, apart=False)
    index, number = equivalence_classes.next() or (-1, -1)
    assert equivalence_classes.left(number).tolist() == [0, 1, 2, 3, 4, 5]
    equivalence_classes.refused(number, 15.0)
    assert (index, equivalence_classes.next()) == (0, (2, number))
    equivalence_classes.started(number)
    assert equivalence_classes.next() == (5, number)
    equivalence_classes.refused(number, -np.inf)
    assert equivalence_classes.next() is None


def test_accounts_are_told_apart_where_they_must_be() -> None:
    queue = order([0, 0, 0], [9.0] * 3, [4, 5, 4])
    together, apart = (EquivalenceClasses(queue, HERE, NOBODY, apart=apart) for apart in (False, True))
    assert [turn.left((turn.next() or (0, 0))[1]).tolist() for turn in (together, apart)] == [[0, 1, 2], [0, 2]]


def test_a_gang_is_a_class_of_its_own() -> None:
    equivalence_classes = EquivalenceClasses(order([0, 0, 0], [9.0] * 3), HERE, np.array([1]), apart=False)
    found = {equivalence_classes.next(), equivalence_classes.next()}
    assert {index for index, _ in found if index is not None} == {0, 1}  # type: ignore[misc]


def test_near_ties_go_where_the_environment_is() -> None:
    costs = np.array([10.0, 5.0, 5.04, np.inf, 5.2])
    assert nearest(costs, lambda number: number in (2, 3)) == 2
    assert nearest(costs, lambda number: number == 4) == 1, "too much dearer"
    assert nearest(costs, lambda number: number == 3) == 1, "may not start there"
    assert nearest(costs, lambda _number: True) == 1
