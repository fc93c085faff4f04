"""Classes: their meetings, the seats of their students, messages to all, and consent to open a session."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import Name, PlainText, Strict
from commonage.wire.workloads import RequestOut

FileText = Annotated[str, Field(max_length=500_000)]


class AnnouncementOut(BaseModel):
    """A message of a teacher to all students of a meeting."""

    text: str
    by: str
    at: float


class ConsentOut(BaseModel):
    """Whether a teacher may open a student's session in this meeting. `given` null: the student was asked."""

    student: str
    teacher: str
    given: bool | None
    at: float


class MeetingOut(BaseModel):
    """The meeting that is on, or whose sessions start now."""

    starts_at: float
    ends_at: float
    announcement: AnnouncementOut | None
    consents: list[ConsentOut] = Field(description="Those that concern you.")


class SeatOut(BaseModel):
    """The seat of a student: `not-started`, `started`, `working`, `stuck` or `out-of-memory`, and why."""

    student: str
    state: str
    reason: ReasonOut
    workload_id: str | None
    consent: ConsentOut | None = Field(description="The student's answer to you; null if you did not ask.")


class ClassOut(BaseModel):
    """A class. Instants are unix seconds."""

    name: str
    title: str
    tenant: str
    environment: str | None
    material: str
    request: RequestOut = Field(description="The share of each seat.")
    seat_count: int = Field(description="Most students at once.")
    times: list[tuple[float, float]]
    time_zone: str
    ahead_s: int
    grace_s: int
    at_end: str
    version: int
    teaches: bool = Field(description="Whether you may change it and see its seats.")
    attends: bool = Field(description="Whether you are on its roster.")
    meeting: MeetingOut | None
    next_meeting: tuple[float, float] | None = Field(description="The meeting that is on, or the next one.")
    reason: ReasonOut | None = Field(description="Why room for it is missing.")
    seats: list[SeatOut] = Field(description="By student; only for those who teach.")
    session_url: str | None = Field(description="The address of your own running session in it.")
    document: dict[str, Any] | None = Field(description="The resource as in a file; only for those who teach.")


class ClassList(BaseModel):
    """Classes, by their next meeting."""

    items: list[ClassOut]


class ClassIn(Strict):
    """The fields of a class, as those of the resource `Class`. Files replace the fields that they stand for."""

    document: dict[str, Any]
    roster: FileText | None = Field(None, description="A CSV file with user names: replaces `users`.")
    calendar: FileText | None = Field(None, description="An .ics file with the meetings: replaces `times`.")
    version: int | None = Field(None, ge=0, description="The version that the change follows; 0: it must be new.")


class ClassMessageIn(Strict):
    """A message to all students of the meeting."""

    text: Annotated[str, Field(min_length=1, max_length=1000)]


class ConsentIn(Strict):
    """A student's answer to a teacher."""

    teacher: Name
    given: bool


class AskIn(Strict):
    """The student whose session a teacher asks to open."""

    student: Annotated[PlainText, Field(min_length=1, max_length=128)]
