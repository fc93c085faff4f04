"""Classes: messages to students and teachers, and the states of seats."""

from __future__ import annotations

from commonage.domain.reasons.base import Reason


class SeatNotStarted(Reason):
    """The student has no session in this meeting yet."""


class SeatStarts(Reason):
    """The student's session waits or starts. `cause` is why."""

    state: str
    lasted_s: float
    cause: Reason | None


class SeatUnused(Reason):
    """The student's session runs, and nothing was computed in it yet."""

    lasted_s: float


class SeatWorks(Reason):
    """The student's session computed a short time ago."""

    used_at: float


class SeatIdle(Reason):
    """The student's session computed before, and not any more."""

    idle_s: float


class SeatRestarts(Reason):
    """The student's session was started several times in this meeting."""

    attempts: int


class StudentUnknown(Reason):
    """The student never signed in, and the platform may not create users for classes."""

    user: str


class SeatFailed(Reason):
    """The student's session cannot be started. It is tried again."""

    cause: Reason


class ClassAnnouncement(Reason):
    """A teacher sends a message to all students of a class."""

    by: str
    class_name: str
    text: str


class ClassEnds(Reason):
    """A meeting is over: the student's session stops soon."""

    class_name: str
    stops_at: float


class ClassOver(Reason):
    """The session was stopped, because the meeting of its class is over."""

    class_name: str


class LeftRoster(Reason):
    """The session was stopped, because its owner is no longer on the roster of the class."""

    class_name: str


class ConsentAsked(Reason):
    """A teacher asks a student to let them into the session."""

    by: str
    student: str
    class_name: str


class ConsentGiven(Reason):
    """A student lets a teacher into the session until the meeting ends."""

    student: str
    teacher: str
    class_name: str


class ConsentWithdrawn(Reason):
    """A student refused to let a teacher into the session, or withdrew the consent."""

    student: str
    teacher: str
    class_name: str


class ConsentNeeded(Reason):
    """A session of a class is entered only with the student's consent."""

    student: str
    class_name: str


class ClassOverQuota(Reason):
    """The seats of a class, with those of other classes at the same time, exceed the quota of the tenant."""

    class_name: str
    tenant: str
    seats: int
    starts_at: float
    cause: Reason


class ClassNotReserved(Reason):
    """A meeting has no reserved room."""

    class_name: str
    cause: Reason


class ClassGone(Reason):
    """The class is deleted. Its sessions are stopped, and its reservations are removed."""

    class_name: str


class ClassEnded(Reason):
    """The session was stopped because its class was deleted or moved to another tenant."""

    class_name: str


class ClassKeepsGpu(Reason):
    """The session keeps its GPU while the meeting of its class is on."""

    class_name: str


class ClassBeyondMaxAge(Reason):
    """The sessions of a class would reach their maximum age before its meeting is over."""

    class_name: str
    lasts_s: float
    max_age_s: float


class StudentNotMember(Reason):
    """The student has no role in the tenant of the class, so no session is started with their home."""

    user: str
    tenant: str
