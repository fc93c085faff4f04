"""Estimates how long workloads run, from those that ended, for workloads without a time limit.

The snapshot records durations; expected_start.py reads the estimates. The last durations are kept for each (owner,
kind, environment), each (kind, environment) and each kind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np

from commonage.scheduler.model.groups import Groups, groups_of
from commonage.scheduler.model.shapes import Floats, Ints

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
        for group in groups_of(kind, environment, owner):
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
        known = [past for key in groups_of(*group) if (past := self._of(key))]
        longer = [len(past) - bisect_right(past, ran_s) for past in known]
        for least in (ENOUGH, MIN):
            for past, count in zip(known, longer, strict=True):
                if count >= least:
                    return Remaining(past[_quantile_at(len(past), count, part)] - ran_s, least == ENOUGH)
        return Remaining(_guessed(ran_s, part), False) if known else None

    def remaining_s(self, groups: Groups, group_of: Ints, ran_s: Floats, part: float) -> Floats:
        """[n]: the seconds of `remaining` for workloads of these groups, in one sweep; inf if unknown."""
        seconds = np.full(len(ran_s), np.inf)
        found = np.zeros(len(ran_s), np.int64)  # the number of longer runs that the estimate had to have
        for numbers, keys in zip(groups.levels(), groups.keys, strict=True):
            # A single duration says no more than that the kind is known.
            some_past = ((key, self._of(key)) for key in self._past if key in keys)
            known = sorted((keys[key], past) for key, past in some_past if len(past) >= MIN or len(key) == 1)
            is_known = np.zeros(len(keys), np.bool_)
            is_known[[number for number, _ in known]] = True
            here = numbers[group_of]
            some = np.flatnonzero(is_known[here])
            some = some[np.argsort(here[some], kind="stable")]
            cuts = np.searchsorted(here[some], [number for number, _ in known] + [len(keys)]).tolist()
            for (_, past), begin, end in zip(known, cuts[:-1], cuts[1:], strict=True):
                if begin < end:
                    _estimate(np.array(past), some[begin:end], part, ran_s, (seconds, found))
        rest = found == 1
        seconds[rest] = np.maximum(1.0, ran_s[rest] * part / max(0.1, 1 - part))
        return seconds

    def _of(self, group: tuple[str, ...]) -> list[float]:
        durations = self._sorted.get(group)
        if durations is None:
            past = self._past.get(group)
            if past is None:
                return []
            durations = self._sorted[group] = sorted(past)
        return durations


def _estimate(past: Floats, some: Ints, part: float, ran_s: Floats, estimate: tuple[Floats, Ints]) -> None:
    """Estimate the workloads `some` from `past`, sorted, unless a narrower group did so with the same confidence."""
    seconds, found = estimate
    count = len(past) - np.searchsorted(past, ran_s[some], side="right")
    least = np.where(count >= ENOUGH, ENOUGH, np.where(count >= MIN, MIN, 1))
    better = least > found[some]
    some, count = some[better], count[better]
    found[some] = least[better]
    at = len(past) - count + np.minimum(count - 1, (part * count).astype(np.int64))
    seconds[some] = past[np.minimum(at, len(past) - 1)] - ran_s[some]


def _quantile_at(length: int, count: int, part: float) -> int:
    """The index of the quantile among the last `count` of `length` sorted durations."""
    return length - count + min(count - 1, int(part * count))


def _guessed(ran_s: float, part: float) -> float:
    return max(1.0, ran_s * part / max(0.1, 1 - part))
