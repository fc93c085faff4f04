"""Estimates how long workloads run, from those that ended, for workloads without a time limit.

The snapshot records durations; expected_start.py reads the estimates. The last durations are kept for each (owner,
kind, environment), each (kind, environment) and each kind.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

MAX_REMEMBERED = 200  # durations for each group
MAX_GROUPS = 5000  # the least recently used group is dropped first
ENOUGH = 8  # an estimate from at least this number of longer runs is confident
MIN = 2


@dataclass(frozen=True, slots=True)
class Remaining:
    seconds: float
    is_confident: bool


class Durations:
    """Past durations, in seconds, by (kind), (kind, environment) and (kind, environment, owner)."""

    def __init__(self) -> None:
        self._past: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()
        self._sorted: dict[tuple[str, ...], list[float]] = {}

    def __bool__(self) -> bool:
        return bool(self._past)

    def ended(self, kind: str, environment: str, owner: str, ran_s: float) -> None:
        for group in _groups(kind, environment, owner):
            self._past.setdefault(group, deque(maxlen=MAX_REMEMBERED)).append(max(0.0, ran_s))
            self._past.move_to_end(group)
            self._sorted.pop(group, None)
        while len(self._past) > MAX_GROUPS:
            group, _ = self._past.popitem(last=False)
            self._sorted.pop(group, None)

    def remaining(self, group: tuple[str, str, str], ran_s: float, part: float) -> Remaining | None:
        """The remaining time of a workload of `group` (kind, environment, owner) that has run for `ran_s`.

        The quantile `part` (0 to 1) of the known longer runs, minus `ran_s`. A workload that has run longer than all
        others is guessed to be halfway, for the quantile 0.5. None if no such workload is known.
        """
        known = [past for key in _groups(*group) if (past := self._of(key))]
        longer = [[duration for duration in past if duration > ran_s] for past in known]
        for least in (ENOUGH, MIN):
            for past in longer:
                if len(past) >= least:
                    return Remaining(past[min(len(past) - 1, int(part * len(past)))] - ran_s, least == ENOUGH)
        return Remaining(max(1.0, ran_s * part / max(0.1, 1 - part)), False) if known else None

    def _of(self, group: tuple[str, ...]) -> list[float]:
        durations = self._sorted.get(group)
        if durations is None:
            durations = self._sorted[group] = sorted(self._past.get(group, ()))
        return durations


def _groups(kind: str, environment: str, owner: str) -> Iterator[tuple[str, ...]]:
    """The groups of a workload, the narrowest first."""
    yield (kind, environment, owner)
    yield (kind, environment)
    yield (kind,)
