"""Who asks and who holds, as the planner sees them. Made by the board; read by all of placement."""

from __future__ import annotations

from dataclasses import dataclass

from commonage.domain.fleet import Lease
from commonage.domain.requests import Request


@dataclass(frozen=True, slots=True)
class Ask:
    """A workload that waits. Its time limit is in seconds; None: it may run for ever."""

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
    gang: str | None = None  # those of one gang start together, on different nodes, or not at all
    gang_size: int = 1


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that is held, by whom, and when its time limit ends it at the latest (None: nobody knows).

    `ending`: somebody wishes its end, and `ends_at` tells when its grace is over. `recalled_for` is the workload that
    it makes room for, if that is why.
    """

    lease: Lease
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
    recalled_for: str = ""
