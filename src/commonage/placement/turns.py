"""Whose turn it is within a pass: of those who ask for the same only the first is looked at, until it started.

Made and asked by the pass. What is refused to one is refused to all behind it that ask the same for as long or longer.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from commonage.placement.queue import Order
from commonage.placement.shapes import Bools, Ints


class Turns:
    """A heap of (index in the order, number of the class). `alive` [sorts] are worth a look: they fit somewhere.

    A class is a sort of asks; with `apart` those of each account, where quotas or reservations tell accounts apart. The
    first members of gangs, at `gangs` in the order, are classes of their own.
    """

    def __init__(self, order: Order, alive: Bools, gangs: Ints, *, apart: bool) -> None:
        self._limits = order.limits
        single = alive[order.sorts] & order.leads
        single[gangs] = False
        indices = np.flatnonzero(single)
        code = order.sorts[indices]
        if apart:
            code = code * (int(order.accounts.max(initial=0)) + 1) + order.accounts[indices]
        if not len(code) or int(code.max()) < 65536:
            code = code.astype(np.uint16)  # which numpy sorts in one sweep
        by_class = np.argsort(code, kind="stable")
        members, cuts = indices[by_class], np.flatnonzero(np.diff(code[by_class])) + 1
        self._classes = np.split(members, cuts) if len(members) else []
        self._classes += [np.array([index]) for index in gangs.tolist() if alive[order.sorts[index]]]
        self._at = [0] * len(self._classes)
        self._heap = [(int(members[0]), number) for number, members in enumerate(self._classes)]
        heapify(self._heap)

    def next(self) -> tuple[int, int] | None:
        """(index in the order, class) of the next; None: that was all."""
        return heappop(self._heap) if self._heap else None

    def started(self, number: int) -> None:
        """It started: the next of its class has a turn."""
        self._at[number] += 1
        self._push(number)

    def refused(self, number: int, longest_s: float) -> None:
        """It was refused, as are all of its class that ask for longer than that."""
        members = self._classes[number][self._at[number] + 1 :]
        self._classes[number], self._at[number] = members[self._limits[members] <= longest_s], 0
        self._push(number)

    def left(self, number: int) -> Ints:
        """[n]: where those of its class stand that had no turn yet, the one with its turn included."""
        return self._classes[number][self._at[number] :]

    def _push(self, number: int) -> None:
        if self._at[number] < len(self._classes[number]):
            heappush(self._heap, (int(self._classes[number][self._at[number]]), number))
