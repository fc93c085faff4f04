"""Queued requests and allocations as the planner sees them. The live state makes them."""

from __future__ import annotations

from dataclasses import dataclass

from commonage.domain.nodes import Allocation
from commonage.domain.requests import Request


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A queued workload. The time limit is in seconds; None: unlimited."""

    workload_id: str
    attempt_id: str
    request: Request
    priority: int
    submitted_at: float
    time_limit_s: int | None = None
    owner: str = ""
    tenant: str = ""
    kind: str = ""
    environment: str = ""
    preemptible: bool = False
    gang: str | None = None  # members of one gang start together, on different nodes, or not at all
    gang_size: int = 1


@dataclass(frozen=True, slots=True)
class AllocatedRequest:
    """A held allocation, its holder, and the latest time at which its time limit ends it (None: unknown).

    `ending`: its stop is requested, and `ends_at` is the end of its grace period. `evicted_for` is the workload for
    which it is evicted, if there is one.
    """

    allocation: Allocation
    workload_id: str
    name: str
    owner: str
    kind: str
    ends_at: float | None = None
    tenant: str = ""
    environment: str = ""
    priority: int = 0
    preemptible: bool = False
    gang: str | None = None
    ending: bool = False
    evicted_for: str = ""
