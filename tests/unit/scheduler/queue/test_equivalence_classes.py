"""Equivalence classes within a pass."""

import numpy as np

from commonage.scheduler.queue.equivalence_classes import EquivalenceClasses
from commonage.scheduler.queue.queue import QueueOrder

HERE = np.ones(3, np.bool_)
NOBODY = np.zeros(0, np.int64)


def order(request_classes: list[int], limits: list[float], accounts: list[int] | None = None) -> QueueOrder:
    n = len(request_classes)
    columns = (
        np.array(request_classes),
        np.array(accounts or [0] * n),
        np.array(limits, np.float64),
        np.ones(n, np.bool_),
    )
    return QueueOrder(0.0, 0, np.arange(n), *columns)


def test_first_request_of_each_class_is_examined_in_order() -> None:
    equivalence_classes = EquivalenceClasses(
        order([1, 0, 1, 2, 0], [9.0] * 5), np.array([True, True, False]), NOBODY, per_account=False
    )
    seen = []
    while (turn := equivalence_classes.next()) is not None:
        seen.append(turn[0])
        equivalence_classes.started(turn[1])
    assert seen == [0, 1, 2, 4], "the fourth fits nowhere"


def test_refusal_holds_for_longer_requests_of_the_class() -> None:
    equivalence_classes = EquivalenceClasses(
        order([0] * 6, [50, 60, 10, np.inf, 20, 5]), HERE, NOBODY, per_account=False
    )
    index, number = equivalence_classes.next() or (-1, -1)
    assert equivalence_classes.remaining(number).tolist() == [0, 1, 2, 3, 4, 5]
    equivalence_classes.refused(number, 15.0)
    assert (index, equivalence_classes.next()) == (0, (2, number))
    equivalence_classes.started(number)
    assert equivalence_classes.next() == (5, number)
    equivalence_classes.refused(number, -np.inf)
    assert equivalence_classes.next() is None


def test_accounts_are_separate_classes_if_required() -> None:
    queue = order([0, 0, 0], [9.0] * 3, [4, 5, 4])
    together, separate = (
        EquivalenceClasses(queue, HERE, NOBODY, per_account=per_account) for per_account in (False, True)
    )
    found = [classes.remaining((classes.next() or (0, 0))[1]).tolist() for classes in (together, separate)]
    assert found == [[0, 1, 2], [0, 2]]


def test_gang_is_its_own_class() -> None:
    equivalence_classes = EquivalenceClasses(order([0, 0, 0], [9.0] * 3), HERE, np.array([1]), per_account=False)
    found = {equivalence_classes.next(), equivalence_classes.next()}
    assert {index for index, _ in found if index is not None} == {0, 1}  # type: ignore[misc]
