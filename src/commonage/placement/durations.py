"""How long workloads of a sort usually hold their place: learned from those that ended, for those without a limit.

Kept by the snapshot, which tells it of what ended; asked by expectation.py. It remembers the last few of each sort: of
one owner's of a kind in an environment, of all of that kind there, and of all of that kind.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

MOST_REMEMBERED = 200  # of each sort, and
MOST_SORTS = 5000  # sorts, the least recently fed forgotten first
ENOUGH = 8  # so many that took longer yet are enough to call what they took usual; with fewer it is a guess
LEAST = 2


@dataclass(frozen=True, slots=True)
class Remaining:
    """How long it may go on, in seconds. `sure`: enough such workloads are known."""

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
        """One ended after so long."""
        for sort in _sorts(kind, environment, owner):
            self._past.setdefault(sort, deque(maxlen=MOST_REMEMBERED)).append(max(0.0, ran_s))
            self._past.move_to_end(sort)
            self._sorted.pop(sort, None)
        while len(self._past) > MOST_SORTS:
            sort, _ = self._past.popitem(last=False)
            self._sorted.pop(sort, None)

    def remaining(self, sort: tuple[str, str, str], ran_s: float, part: float) -> Remaining | None:
        """How much longer one of (kind, environment, owner) goes on that ran for `ran_s`, so that of those that lasted
        as long the `part` (0 to 1) had ended by then; None if no such workload is known.

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
    """The narrowest first."""
    yield (kind, environment, owner)
    yield (kind, environment)
    yield (kind,)
