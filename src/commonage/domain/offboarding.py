"""Offboarding: the renaming or removal of a user or a tenant, as a row that outlives a restart.

`control.offboarding` plans it, carries out its steps in order, and is the only writer. A name that was given up stays
retired until an admin releases it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Subject(StrEnum):
    USER = "user"
    TENANT = "tenant"


class Change(StrEnum):
    RENAME = "rename"
    REMOVE = "remove"


class WorkChoice(StrEnum):
    """The end of the workloads. Sessions are stopped in any case.

    `stop`: now. `finish`: running workloads end by themselves. `hand-over`: workloads are requeued for the new
    name or the heir. In a rename, queued workloads keep their place in the queue under the new name. Cron jobs are
    handed over in the same cases as queued workloads, and removed otherwise.
    """

    STOP = "stop"
    FINISH = "finish"
    HAND_OVER = "hand-over"


class DataChoice(StrEnum):
    """The place of homes and volumes after a removal. A rename moves them."""

    HAND_OVER = "hand-over"
    ARCHIVE = "archive"
    KEEP = "keep"
    DELETE = "delete"


class Step(StrEnum):
    """In this order. Each is idempotent. `tokens` only of a removed user, `history` only of a rename."""

    TOKENS = "tokens"
    WORKLOADS = "workloads"
    ACCOUNT = "account"
    DATA = "data"
    RESOURCES = "resources"
    CRON_JOBS = "cron-jobs"
    RESERVATIONS = "reservations"
    IMAGES = "images"
    HISTORY = "history"


@dataclass(frozen=True, slots=True)
class Wanted:
    """`to` is the new name of a rename. `heir`, of a removal, gets the workloads and data that are handed over.
    `keep_account`: the hub keeps the user, or the group of the tenant.
    """

    subject: Subject
    change: Change
    name: str
    to: str = ""
    heir: str = ""
    workloads: WorkChoice = WorkChoice.STOP
    data: DataChoice = DataChoice.ARCHIVE
    keep_account: bool = False

    @property
    def receiver(self) -> str:
        """The name that gets the workloads and data; empty without a handover."""
        return self.to if self.change is Change.RENAME else self.heir

    @property
    def steps(self) -> tuple[Step, ...]:
        left_out = set[Step]()
        if self.subject is not Subject.USER or self.change is not Change.REMOVE:
            left_out.add(Step.TOKENS)
        if self.change is not Change.RENAME:
            left_out.add(Step.HISTORY)
        return tuple(step for step in Step if step not in left_out)

    @property
    def holds_queue(self) -> bool:
        """True if workloads that wait, and cron jobs, are held until they have their new owner or tenant."""
        return self.change is Change.RENAME or self.workloads is WorkChoice.HAND_OVER


@dataclass(frozen=True, slots=True)
class Offboarding:
    """`done` are the steps that are finished. `version` is that of the plan that the admin saw.

    `ended_at`: all steps are done. `released_at`: an admin permits others to take the name.
    """

    id: str
    wanted: Wanted
    version: str
    by: str
    at: float
    done: tuple[Step, ...] = ()
    last_error: str = ""
    ended_at: float | None = None
    released_at: float | None = None
    released_by: str = ""

    @property
    def next_step(self) -> Step | None:
        return next((step for step in self.wanted.steps if step not in self.done), None)

    @property
    def is_pending(self) -> bool:
        return self.ended_at is None

    def after(self, step: Step, at: float) -> Offboarding:
        done = (*self.done, step)
        ended_at = at if set(self.wanted.steps) <= set(done) else None
        return replace(self, done=done, last_error="", ended_at=ended_at)
