"""What time limits free and reservations take at the instants that matter: now, and when each reservation begins.

Room only grows by ends and shrinks by beginnings, so whoever fits at these instants fits at all times between. Owned by
reservations.py; arrays are [K, N, W], K instants, rows as in space.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from commonage.placement.asks import Held
from commonage.placement.holdings import NEVER_ENDS, Holdings
from commonage.placement.shapes import Ints
from commonage.placement.space import everywhere, free_rows, row_of, width


class Timeline:
    """`times` [K], the first of which is now; `freed` by then, `load` is what reservations keep then."""

    def __init__(self, holdings: Holdings, times: Sequence[float]) -> None:
        self.grid = holdings.grid
        self.times = list(times)
        holdings.sync()
        shape = (len(times), len(self.grid.nodes), width(self.grid))
        self.freed: Ints = np.zeros(shape, np.int64)
        self.load: Ints = np.zeros(shape, np.int64)
        ending = np.flatnonzero((holdings.node >= 0) & (holdings.ends_at < NEVER_ENDS))
        # What should have ended by now, but is still there, is not free now.
        index = 1 + np.searchsorted(self.times[1:], holdings.ends_at[ending], side="left")
        for instant in range(1, len(times)):
            self.freed[instant] = self.freed[instant - 1] + holdings.sum(ending[index == instant])

    def end(self, held: Held, sign: int) -> None:
        """Reckon with the end of something that is held from now on (1), or no more (-1)."""
        number = self.grid.number.get(held.lease.node)
        if number is not None and held.ends_at is not None:
            first = 1 + bisect_left(self.times[1:], held.ends_at)
            self.freed[first:, number] += sign * row_of(self.grid, held.lease)

    def during(self, starts_at: float, ends_at: float) -> list[int]:
        """The instants within a window."""
        now = self.times[0]
        return [index for index, at in enumerate(self.times) if max(starts_at, now) <= at < ends_at]

    def until(self, ends_at: float | None) -> int:
        """How many of the instants are before that one; all, where nobody knows the end."""
        return len(self.times) if ends_at is None else max(1, bisect_left(self.times, ends_at))

    def room(self, instants: Sequence[int], nodes: Ints | None = None) -> Ints:
        """[n, W]: what is free and not kept at all of these instants, on all nodes or these."""
        nodes = everywhere(self.grid) if nodes is None else nodes
        beyond: Ints = (self.freed[instants][:, nodes] - self.load[instants][:, nodes]).min(axis=0)
        return free_rows(self.grid, nodes) + beyond

    def short(self, number: int) -> bool:
        """True if something that is kept on a node will not be there at some instant."""
        row = free_rows(self.grid, np.array([number]))[0]
        load = self.load[:, number]
        return bool(((load > 0) & (row + self.freed[:, number] - load < 0)).any())
