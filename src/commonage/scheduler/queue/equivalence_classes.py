"""Chooses the next request within a pass: of equal requests only the first is examined until it has started.

A refusal holds for every later request of the class that runs as long or longer.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from commonage.scheduler.model.shapes import Bools, Ints
from commonage.scheduler.queue.queue import QueueOrder


class EquivalenceClasses:
    """A heap of (index in the order, equivalence class). `fits_now`: the request classes that fit somewhere.

    An equivalence class holds the requests of one request class, or with `per_account` those of one request class and
    account: quotas and reservations differ by account. The first member of a gang, at `gangs`, is its own class.
    """

    def __init__(self, order: QueueOrder, fits_now: Bools, gangs: Ints, *, per_account: bool) -> None:
        self._order = order
        single = fits_now[order.request_classes] & order.leads
        single[gangs] = False
        indices = np.flatnonzero(single)
        number = np.cumsum(fits_now) - 1  # small numbers: numpy sorts 8 and 16 bits by radix sort, in a sweep or two
        code = number[order.request_classes[indices]]
        if per_account:
            code = code * (int(order.accounts.max(initial=0)) + 1) + order.accounts[indices]
        largest = int(code.max(initial=0))
        code = code.astype(np.uint8 if largest < 256 else np.uint16 if largest < 65536 else np.int64)
        by_class = np.argsort(code, kind="stable")
        members, cuts = indices[by_class], np.flatnonzero(np.diff(code[by_class])) + 1
        self._classes = np.split(members, cuts) if len(members) else []
        self._classes += [np.array([index]) for index in gangs.tolist() if fits_now[order.request_classes[index]]]
        self._at = [0] * len(self._classes)
        self._heap = [(int(members[0]), number) for number, members in enumerate(self._classes)]
        heapify(self._heap)

    def next(self) -> tuple[int, int] | None:
        """(index in the order, class) of the next request to examine; None at the end."""
        return heappop(self._heap) if self._heap else None

    def started(self, number: int) -> None:
        self._at[number] += 1
        self._push(number)

    def refused(self, number: int, longest_s: float) -> None:
        """The current request was refused; so are all of its class with a time limit beyond `longest_s`."""
        members = self._classes[number][self._at[number] + 1 :]
        self._classes[number], self._at[number] = members[self._order.limits_at(members) <= longest_s], 0
        self._push(number)

    def keep(self, number: int, members: Ints) -> None:
        """Continue with only these indices of the class."""
        self._classes[number], self._at[number] = members, 0
        self._push(number)

    def remaining(self, number: int) -> Ints:
        """[n]: the indices of the class from the current request on."""
        return self._classes[number][self._at[number] :]

    def _push(self, number: int) -> None:
        if self._at[number] < len(self._classes[number]):
            heappush(self._heap, (int(self._classes[number][self._at[number]]), number))
