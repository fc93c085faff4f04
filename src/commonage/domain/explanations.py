"""Explanations of waiting, in codes and numbers: made by the scheduler, shown by API, CLI, portal and spawner alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import QuotaUse
from commonage.domain.reasons.waiting import Resources
from commonage.domain.requests import Request


@dataclass(frozen=True, slots=True)
class Holder:
    """A workload that holds resources for which another waits. `ends_at` is set only if it has a time limit.

    `holds` is the part of the device under which it is listed, or of the resource for which the other one waits.
    Without an owner it is the total of what tenants hold that the reader may not see; it ends with the last of them.
    """

    workload_id: str
    name: str
    owner: str
    kind: str
    node: str
    holds: Resources
    ends_at: float | None = None
    tenant: str = ""

    @property
    def is_anonymous(self) -> bool:
        return not self.owner


class Precedence(StrEnum):
    """Why a request stands ahead. `own`: it is an earlier request of the same user."""

    PRIORITY = "priority"
    FAIR_SHARE = "fair-share"
    OLDER = "older"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Ahead:
    """A request in the queue; all fields are empty if it is of a tenant that the reader may not see."""

    kind: str = ""
    owner: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class JobsAhead:
    """`nearest` are the nearest few. Nothing else of other people's work is shown."""

    precedence: Precedence
    count: int
    nearest: tuple[Ahead, ...]


@dataclass(frozen=True, slots=True)
class SiteChoice:
    """One site, and why the workload does not start there; `is_candidate`: it may start there at some time.

    `free_at`: when time limits leave room there, in unix seconds; None if unknown.
    """

    site: str
    reason: Reason
    is_candidate: bool = True
    free_at: float | None = None


class Confidence(StrEnum):
    """The confidence in an expected start.

    `limits`: from the time limits of everything in its way; it is no later unless a request comes ahead. `likely`: from
    the usual durations of such workloads. `guess`: from weaker evidence. `unknown`: no evidence.
    """

    LIMITS = "limits"
    LIKELY = "likely"
    GUESS = "guess"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why does it wait, and until when?".

    `reasons` are why it waits, the one for the nearest node first; for a workload that does not wait, why it is in its
    state. `position` counts from 1 in the queue (of `site`, if there are several), None when it is not in it;
    `is_queued` is False for a request that is only considered. `pending_node` is a requested node that could run it.
    `fits_now` is a smaller request that would start now, as text, `fits_now_request` the same to submit;
    `fits_now_gpus` is its text for `--gpus` if nothing else differs. `expected_start_at` is unix seconds, None if
    unknown; `basis` is its evidence, or why there is no estimate. `earliest_start_at` and `latest_start_at` are set if
    past durations give a range. `sites`: all sites, the candidates first, if there are several. `at` is when it was
    made. `quotas`: of a dry run, what the quotas leave.
    """

    workload_id: str | None
    reasons: tuple[Reason, ...] = ()
    at: float = 0.0
    startable_now: bool = False
    position: int | None = None
    is_queued: bool = True
    site: str | None = None
    sites: tuple[SiteChoice, ...] = ()
    queue_length: int = 0
    jobs_ahead: tuple[JobsAhead, ...] = ()
    pending_node: Reason | None = None
    holders: tuple[Holder, ...] = ()
    fits_now: str | None = None
    fits_now_gpus: str | None = None
    fits_now_request: Request | None = None
    expected_start_at: float | None = None
    earliest_start_at: float | None = None
    latest_start_at: float | None = None
    confidence: Confidence = Confidence.UNKNOWN
    basis: Reason | None = None
    quotas: tuple[QuotaUse, ...] = ()
