"""Why something waits, in words and numbers: made by the planner, shown by API, CLI, portal and spawner alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.requests import Request


@dataclass(frozen=True, slots=True)
class Holder:
    """A workload that holds what another waits for. `ends_at` only where its time limit tells.

    `memory_mib` is the VRAM it holds on the device it is listed under, for drawing; 0 where it is listed under none.
    """

    workload_id: str
    name: str
    owner: str
    kind: str
    node: str
    holds: str
    ends_at: float | None = None
    memory_mib: int = 0


class Precedence(StrEnum):
    """Why somebody stands ahead: by a higher priority, more due by fair share, as older, or as one's own earlier."""

    PRIORITY = "priority"
    FAIR_SHARE = "fair-share"
    OLDER = "older"
    OWN = "own"


_PRECEDENCE = {
    Precedence.PRIORITY: "with a higher priority",
    Precedence.FAIR_SHARE: "by people who used or asked for less lately",
    Precedence.OLDER: "waiting longer",
    Precedence.OWN: "of the same owner",
}


@dataclass(frozen=True, slots=True)
class InFront:
    """So many stand ahead for one reason. `nearest` are the nearest few, each as (kind, owner): other people's work is
    known by no more than that."""

    precedence: Precedence
    count: int
    nearest: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """`3 with a higher priority (a job of ann, a session of bob, …)`."""
        words = f"{self.count} {_PRECEDENCE[self.precedence]}"
        if self.precedence is Precedence.OWN:
            return words
        named = ", ".join(dict.fromkeys(f"a {kind or 'workload'} of {owner}" for kind, owner in self.nearest))
        return f"{words} ({named}{', …' if self.count > len(self.nearest) else ''})"


class Sureness(StrEnum):
    """How sure an expected start is.

    `limits`: by the time limits of all that is in its way; it comes no later unless somebody comes ahead. `likely`: by
    what such workloads usually take. `guess`: no more than that. `unknown`: nothing tells.
    """

    LIMITS = "limits"
    LIKELY = "likely"
    GUESS = "guess"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why does it wait, and until when?".

    `summary` is the whole answer in one or two sentences. `position` counts from 1 in the queue, None when it does not
    stand in it; `in_front` says who is ahead, and why. `lacks` names what is missing with numbers, one sentence for
    each kind of thing. `fits_now` is a smaller request that would start now, in words, `fits_now_request` the same to
    submit; `fits_now_gpus` is its text for `--gpus` where nothing else differs. `expected_start_at` is unix seconds,
    None where nothing tells; `basis` says what it rests on, `sureness` how sure it is. `earliest_start_at` and
    `latest_start_at` are there where the past gives a range.
    """

    workload_id: str | None
    summary: str
    startable_now: bool = False
    position: int | None = None
    queue_length: int = 0
    in_front: tuple[InFront, ...] = ()
    lacks: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    fits_now: str | None = None
    fits_now_gpus: str | None = None
    fits_now_request: Request | None = None
    expected_start_at: float | None = None
    earliest_start_at: float | None = None
    latest_start_at: float | None = None
    sureness: Sureness = Sureness.UNKNOWN
    basis: str = ""
