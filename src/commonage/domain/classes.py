"""Classes: students who meet at set times, each in a session of the same size; and the state of each student's seat."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from commonage.domain.reasons import Reason
from commonage.domain.reasons import attempts as ended
from commonage.domain.reasons import classes as reasons
from commonage.domain.requests import Request
from commonage.domain.windows import Window
from commonage.domain.workloads import Kind, Spec, State

USED_FOR_S = 600.0
"""A session in which nothing was computed for this long is not working any more."""
STARTS_WITHIN_S = 120.0
"""A session that needs longer to start during a meeting needs a look."""
MAX_ATTEMPTS = 2
"""A session that was started more often in one meeting needs a look."""


class AtEnd(StrEnum):
    """`stop` or `keep` the sessions after a meeting."""

    STOP = "stop"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Class:
    """`users` and the members of `groups` of the hub are the roster. `name` is also the name of each session.

    `request` is the share of each of `seats` sessions. `material` is the name of a volume, or empty. Sessions start
    `ahead_s` before each of `times`, and are stopped `grace_s` after it, if at all.
    """

    name: str
    tenant: str
    seats: int
    request: Request
    times: tuple[Window, ...]
    title: str = ""
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    environment: str | None = None
    material: str = ""
    time_zone: str = "UTC"
    ahead_s: int = 600
    grace_s: int = 600
    at_end: AtEnd = AtEnd.STOP

    @property
    def text(self) -> str:
        return self.title or self.name

    def has(self, spec: Spec) -> bool:
        """Whether it is a session of this class: started for it, or by its owner under the name of the class."""
        named = spec.class_name or spec.name
        return spec.kind is Kind.SESSION and named == self.name and spec.tenant == self.tenant

    def place(self, window: Window) -> Window:
        """The time in which its sessions hold their shares for this meeting."""
        starts_at, ends_at = window
        return starts_at - self.ahead_s, ends_at + (self.grace_s if self.at_end is AtEnd.STOP else 0)

    def places(self, now: float) -> Iterator[Window]:
        """Those that are not over, by start."""
        return (place for place in map(self.place, sorted(self.times)) if place[1] > now)

    def meeting(self, now: float) -> Window | None:
        """The meeting that is on now, or whose sessions start now; the earlier one of two."""
        for window in sorted(self.times):
            starts_at, ends_at = self.place(window)
            if starts_at <= now < max(ends_at, window[1]):
                return window
        return None

    def next_meeting(self, now: float) -> Window | None:
        """The one that is on, or the next one."""
        return next((window for window in sorted(self.times) if window[1] > now), None)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A message of a teacher to all students of a meeting."""

    text: str
    by: str
    at: float


@dataclass(frozen=True, slots=True)
class Consent:
    """Whether a teacher may open a student's session. `given` None: the student was asked."""

    student: str
    teacher: str
    given: bool | None
    at: float


@dataclass(frozen=True, slots=True)
class ClassMeeting:
    """The record of one meeting. `warned`: students were told when their sessions end. `over`: the sessions ended."""

    id: str
    class_name: str
    starts_at: float
    ends_at: float
    warned: bool = False
    over: bool = False
    announcement: Announcement | None = None
    consents: tuple[Consent, ...] = ()

    def consent(self, student: str, teacher: str) -> Consent | None:
        return next((one for one in self.consents if (one.student, one.teacher) == (student, teacher)), None)

    def with_consent(self, consent: Consent) -> ClassMeeting:
        others = (one for one in self.consents if (one.student, one.teacher) != (consent.student, consent.teacher))
        return replace(self, consents=(*others, consent))


def meeting_id(class_name: str, starts_at: float) -> str:
    return f"{class_name}@{int(starts_at)}"


def session_key(class_name: str, starts_at: float) -> str:
    """The client key of a student's session that is started for this meeting: each is started once."""
    return f"class-{class_name}-{int(starts_at)}"


class SeatState(StrEnum):
    """The state of a student as teachers see it. `stuck`: needs a look."""

    NOT_STARTED = "not-started"
    STARTED = "started"
    WORKING = "working"
    STUCK = "stuck"
    OUT_OF_MEMORY = "out-of-memory"


@dataclass(frozen=True, slots=True)
class Observed:
    """The newest session of a student in a meeting. `state` None: no session, and `reason` is the cause, if known.

    `used_at` is when it last computed, on CPUs or GPUs; None before that.
    """

    state: State | None
    since: float = 0.0
    reason: Reason | None = None
    attempts: int = 0
    used_at: float | None = None


def seat_of(seen: Observed, now: float) -> tuple[SeatState, Reason]:
    """The state of a student's seat, and why."""
    if seen.state is None:
        failed = seen.reason is not None
        return (SeatState.STUCK if failed else SeatState.NOT_STARTED), seen.reason or reasons.SeatNotStarted()
    if isinstance(seen.reason, ended.OutOfMemory):
        return SeatState.OUT_OF_MEMORY, seen.reason
    if seen.state.is_terminal:
        stopped = seen.state in (State.STOPPED, State.SUCCEEDED)
        return (SeatState.NOT_STARTED if stopped else SeatState.STUCK), seen.reason or reasons.SeatNotStarted()
    lasted_s = max(0.0, now - seen.since)
    if seen.state is not State.RUNNING:
        late = lasted_s > STARTS_WITHIN_S
        cause = reasons.SeatStarts(state=seen.state.value, lasted_s=lasted_s, cause=seen.reason)
        return (SeatState.STUCK if late else SeatState.NOT_STARTED), cause
    if seen.attempts > MAX_ATTEMPTS:
        return SeatState.STUCK, reasons.SeatRestarts(attempts=seen.attempts)
    if seen.used_at is None:
        return SeatState.STARTED, reasons.SeatUnused(lasted_s=lasted_s)
    idle_s = max(0.0, now - seen.used_at)
    if idle_s > USED_FOR_S:
        return SeatState.STUCK, reasons.SeatIdle(idle_s=idle_s)
    return SeatState.WORKING, reasons.SeatWorks(used_at=seen.used_at)


def counts(states: Collection[SeatState]) -> dict[SeatState, int]:
    return {one: sum(state is one for state in states) for one in SeatState}
