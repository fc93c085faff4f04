"""Chooses the next request within a pass: of equal requests only the first is examined until it has started.

Used by the pass. A refusal holds for every later equal request that runs as long or longer.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from commonage.scheduler.model.shapes import Bools, Ints
from commonage.scheduler.queue.queue import QueueOrder


class EquivalenceClasses:
    """A heap of (index in the order, number of the class). `alive` [sorts] are the sorts that fit somewhere.

    A class is a sort of requests; with `apart`, the requests of one sort and account, for quotas or reservations that
    differ by account. The first members of gangs, at `gangs` in the order, are classes of their own.
    """

    def __init__(self, order: QueueOrder, alive: Bools, gangs: Ints, *, apart: bool) -> None:
        self._limits = order.limits
        single = alive[order.sorts] & order.leads
        single[gangs] = False
        indices = np.flatnonzero(single)
        code = order.sorts[indices]
        if apart:
            code = code * (int(order.accounts.max(initial=0)) + 1) + order.accounts[indices]
        if not len(code) or int(code.max()) < 65536:
            code = code.astype(np.uint16)  # numpy sorts this type in one sweep (radix sort)
        by_class = np.argsort(code, kind="stable")
        members, cuts = indices[by_class], np.flatnonzero(np.diff(code[by_class])) + 1
        self._classes = np.split(members, cuts) if len(members) else []
        self._classes += [np.array([index]) for index in gangs.tolist() if alive[order.sorts[index]]]
        self._at = [0] * len(self._classes)
        self._heap = [(int(members[0]), number) for number, members in enumerate(self._classes)]
        heapify(self._heap)

    def next(self) -> tuple[int, int] | None:
        """(index in the order, class) of the next request; None at the end."""
        return heappop(self._heap) if self._heap else None

    def started(self, number: int) -> None:
        """It started: the next of its class follows."""
        self._at[number] += 1
        self._push(number)

    def refused(self, number: int, longest_s: float) -> None:
        """It was refused, and so are all of its class that ask for longer than that."""
        members = self._classes[number][self._at[number] + 1 :]
        self._classes[number], self._at[number] = members[self._limits[members] <= longest_s], 0
        self._push(number)

    def left(self, number: int) -> Ints:
        """[n]: the indices of its class that were not examined yet, including the current one."""
        return self._classes[number][self._at[number] :]

    def _push(self, number: int) -> None:
        if self._at[number] < len(self._classes[number]):
            heappush(self._heap, (int(self._classes[number][self._at[number]]), number))
