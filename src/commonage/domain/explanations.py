"""Why something waits, in codes and numbers: made by the scheduler, shown by API, CLI, portal and spawner alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.reasons import Reason
from commonage.domain.reasons.waiting import Resources
from commonage.domain.requests import Request


@dataclass(frozen=True, slots=True)
class Holder:
    """A workload that holds what another waits for. `ends_at` only where its time limit tells.

    `holds` is what it holds of the device it is listed under, or of what the other one waits for.
    """

    workload_id: str
    name: str
    owner: str
    kind: str
    node: str
    holds: Resources
    ends_at: float | None = None


class Precedence(StrEnum):
    """Why somebody stands ahead: by a higher priority, more due by fair share, as older, or as one's own earlier."""

    PRIORITY = "priority"
    FAIR_SHARE = "fair-share"
    OLDER = "older"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class InFront:
    """So many stand ahead for one reason. `nearest` are the nearest few, each as (kind, owner): other people's work is
    known by no more than that."""

    precedence: Precedence
    count: int
    nearest: tuple[tuple[str, str], ...]


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

    `reasons` are why it waits, the one for the nearest node first; for one that does not wait, why it is where it is.
    `position` counts from 1 in the queue (of `site`, where there are several), None when it is not in it; `is_queued`
    is False for a request that is only considered. `in_front` says who is ahead, and why. `coming` is a node that was
    requested and could run it. `fits_now` is a smaller request that would start now, in words, `fits_now_request` the
    same to submit; `fits_now_gpus` is its text for `--gpus` where nothing else differs. `expected_start_at` is unix
    seconds, None where nothing tells; `basis` says what it rests on or why there is none, `sureness` how sure it is.
    `earliest_start_at` and `latest_start_at` are there where the past gives a range. `at` is when it was made.
    """

    workload_id: str | None
    reasons: tuple[Reason, ...] = ()
    at: float = 0.0
    startable_now: bool = False
    position: int | None = None
    is_queued: bool = True
    site: str | None = None
    queue_length: int = 0
    in_front: tuple[InFront, ...] = ()
    coming: Reason | None = None
    holders: tuple[Holder, ...] = ()
    fits_now: str | None = None
    fits_now_gpus: str | None = None
    fits_now_request: Request | None = None
    expected_start_at: float | None = None
    earliest_start_at: float | None = None
    latest_start_at: float | None = None
    sureness: Sureness = Sureness.UNKNOWN
    basis: Reason | None = None
