"""Groups of similar workloads, as numbers: the queue and the allocations keep one for each workload.

The estimates of run times (queue/durations.py) read them for all workloads at once.
"""

from __future__ import annotations

import numpy as np

from commonage.scheduler.model.shapes import Ints


class Groups:
    """Numbers groups, and the wider groups that contain them, in order of appearance."""

    def __init__(self) -> None:
        self.keys: tuple[dict[tuple[str, ...], int], ...] = ({}, {}, {})
        """The numbers of each level: by owner, environment and kind; by environment and kind; by kind."""
        self._rows: list[tuple[int, ...]] = []
        self._levels: Ints = np.zeros((3, 0), np.int64)

    def number(self, kind: str, environment: str, owner: str) -> int:
        known = self.keys[0].get((kind, environment, owner))
        if known is not None:
            return known
        pairs = zip(self.keys, groups_of(kind, environment, owner), strict=True)
        row = tuple(numbers.setdefault(key, len(numbers)) for numbers, key in pairs)
        self._rows.append(row)
        return row[0]

    def levels(self) -> Ints:
        """[3, groups]: for each group its number in each level."""
        if self._levels.shape[1] != len(self._rows):
            self._levels = np.array(self._rows, np.int64).reshape(-1, 3).T.copy()
        return self._levels


def groups_of(kind: str, environment: str, owner: str) -> tuple[tuple[str, ...], ...]:
    """The groups of a workload, the narrowest first."""
    return ((kind, environment, owner), (kind, environment), (kind,))
