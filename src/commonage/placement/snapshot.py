"""What the planner sees: every machine, everything that is held, the queue in order, and what time it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.domain.fleet import Lease, Node
from commonage.domain.requests import Request


@dataclass(frozen=True, slots=True)
class Ask:
    """A workload that waits. `shape` is equal for equal requests, so that one refusal answers all of them."""

    workload_id: str
    attempt_id: str
    request: Request
    shape: int
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

    @property
    def order(self) -> tuple[int, float, str]:
        """Sorts the queue: higher priority first, then the older."""
        return (-self.priority, self.submitted_at, self.workload_id)


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that is held, by whom, and when its time limit ends it at the latest (None: nobody knows)."""

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Fleet, leases and queue at one instant. `queue` is sorted by `Ask.order`."""

    now: float
    nodes: Sequence[Node]
    held: Sequence[Held]
    queue: Sequence[Ask]
