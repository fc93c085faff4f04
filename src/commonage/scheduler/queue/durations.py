"""Estimates how long workloads of a kind run, from those that ended, for workloads without a time limit.

The snapshot records what ended; expectation.py reads it. The last few durations are kept by owner, kind and
environment, by kind and environment, and by kind.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

MOST_REMEMBERED = 200  # durations kept for each sort
MOST_SORTS = 5000  # sorts kept; the least recently used is forgotten first
ENOUGH = 8  # with at least this number of longer runs the estimate is called usual, with fewer a guess
LEAST = 2


@dataclass(frozen=True, slots=True)
class Remaining:
    """The remaining run time in seconds. `sure`: enough such workloads are known."""

    seconds: float
    sure: bool


class Durations:
    """The past durations, in seconds, by (kind), (kind, environment) and (kind, environment, owner)."""

    def __init__(self) -> None:
        self._past: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()
        self._sorted: dict[tuple[str, ...], list[float]] = {}

    def __bool__(self) -> bool:
        return bool(self._past)

    def ended(self, kind: str, environment: str, owner: str, ran_s: float) -> None:
        """Record one that ran for `ran_s` seconds."""
        for sort in _sorts(kind, environment, owner):
            self._past.setdefault(sort, deque(maxlen=MOST_REMEMBERED)).append(max(0.0, ran_s))
            self._past.move_to_end(sort)
            self._sorted.pop(sort, None)
        while len(self._past) > MOST_SORTS:
            sort, _ = self._past.popitem(last=False)
            self._sorted.pop(sort, None)

    def remaining(self, sort: tuple[str, str, str], ran_s: float, part: float) -> Remaining | None:
        """The remaining time of one of (kind, environment, owner) that has run for `ran_s`: the time by which the
        `part` (0 to 1) of all that lasted as long had ended; None if no such workload is known.

        One that ran longer than all before it is guessed to be halfway through.
        """
        known = [past for one in _sorts(*sort) if (past := self._of(one))]
        longer = [[one for one in past if one > ran_s] for past in known]
        for least in (ENOUGH, LEAST):
            for past in longer:
                if len(past) >= least:
                    return Remaining(past[min(len(past) - 1, int(part * len(past)))] - ran_s, least == ENOUGH)
        return Remaining(max(1.0, ran_s * part / max(0.1, 1 - part)), False) if known else None

    def _of(self, sort: tuple[str, ...]) -> list[float]:
        found = self._sorted.get(sort)
        if found is None:
            found = self._sorted[sort] = sorted(self._past.get(sort, ()))
        return found


def _sorts(kind: str, environment: str, owner: str) -> Iterator[tuple[str, ...]]:
    """Its sorts, the narrowest first."""
    yield (kind, environment, owner)
    yield (kind, environment)
    yield (kind,)
