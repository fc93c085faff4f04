"""The faults of a day, determined by a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

SITES = ("clinic", "lab")
CONTROL = "control"


class FaultKind(StrEnum):
    CUT = "cut"
    """All connections are reset, and new ones are refused."""
    HALF_OPEN = "half-open"
    """The line takes bytes and delivers none; neither side is notified."""
    DELAY = "delay"
    THROTTLE = "throttle"
    CORRUPT = "corrupt"
    """Single bits are inverted, again and again."""
    RESTART = "restart"
    """Stopped as an admin does it, and started again."""
    KILL = "kill"
    """SIGKILL, and started again."""
    DISK_FULL = "disk-full"


_LINE = (FaultKind.CUT, FaultKind.HALF_OPEN, FaultKind.DELAY, FaultKind.THROTTLE, FaultKind.CORRUPT)
_PROCESS = (FaultKind.KILL, FaultKind.RESTART)


@dataclass(frozen=True, slots=True)
class Fault:
    """`target` is a site, or the control plane. It begins `at_s` seconds after the day, and lasts `for_s` seconds."""

    at_s: float
    kind: FaultKind
    target: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Lane:
    """Faults that never overlap: `pauses_s` and `lengths_s` are the ranges of the times between them and of theirs."""

    faults: Sequence[tuple[FaultKind, str]]
    pauses_s: tuple[float, float]
    lengths_s: tuple[float, float]


def _lanes() -> Iterator[Lane]:
    for site in SITES:
        yield Lane([(kind, site) for kind in _LINE], (2, 9), (1, 8))
        yield Lane([(kind, site) for kind in _PROCESS], (9, 22), (0, 6))
    yield Lane([(kind, CONTROL) for kind in _PROCESS], (14, 24), (0, 3))
    yield Lane([(FaultKind.DISK_FULL, target) for target in (*SITES, CONTROL)], (5, 12), (4, 9))


def schedule(seed: int, day_s: float) -> list[Fault]:
    """All faults in the order of their beginning. Each lane deals its kinds in turn, so that a short day has each."""
    chance = random.Random(seed)
    dealt = chain.from_iterable(_deal(lane, day_s, chance) for lane in _lanes())
    return sorted([*dealt, *_long_cuts(day_s, chance)], key=lambda one: one.at_s)


def _deal(lane: Lane, day_s: float, chance: random.Random) -> Iterator[Fault]:
    at, deck = chance.uniform(*lane.pauses_s), list[tuple[FaultKind, str]]()
    while at < day_s:
        if not deck:
            deck = chance.sample(list(lane.faults), len(lane.faults))
        kind, target = deck.pop()
        length = chance.uniform(*lane.lengths_s)
        yield Fault(round(at, 3), kind, target, round(length, 3))
        at += length + chance.uniform(*lane.pauses_s)


def _long_cuts(day_s: float, chance: random.Random) -> Iterator[Fault]:
    """Longer than what the control plane bridges: start requests that never left are withdrawn meanwhile."""
    at = chance.uniform(0.2, 0.4) * min(day_s, 300)
    while at < day_s:
        yield Fault(round(at, 3), FaultKind.CUT, chance.choice(SITES), round(chance.uniform(32, 38), 3))
        at += chance.uniform(240, 360)
