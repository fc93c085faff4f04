"""Events in the order in which they happened: written once, never changed, read by users and by streams."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.reasons import Reason


class EventKind(StrEnum):
    """The kind of an event; stable, part of the API."""

    SUBMITTED = "submitted"
    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    PROGRESS = "progress"
    RUNNING = "running"
    STOPPING = "stopping"
    WARNING = "warning"
    RETRYING = "retrying"
    ENDED = "ended"
    NODE = "node"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class Event:
    """`seq` rises by one with every event of an installation (0 until it is written); `at` is unix seconds."""

    kind: EventKind
    at: float
    reason: Reason
    workload_id: str | None = None
    attempt_id: str | None = None
    owner: str | None = None
    tenant: str | None = None
    state: str | None = None
    seq: int = 0
