"""Classes as teachers and students use them: create and change one, see the seats, send a message, ask to be let in.

Called by the API and the portal. Admins may declare classes as resources, too; both end in `control.resources`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from commonage.control.access import access_of
from commonage.control.classes.loop import ClassLoop
from commonage.control.classes.meetings import Meetings
from commonage.control.classes.seats import Seats
from commonage.control.reservations import Reservations
from commonage.control.resources.resources import ANY_VERSION, Resources
from commonage.control.settings import ControlSettings
from commonage.control.state.writer import Writer
from commonage.domain.classes import (
    Announcement,
    Class,
    ClassMeeting,
    Consent,
    SeatState,
    counts,
    seat_of,
)
from commonage.domain.errors import Conflict, InvalidInput, NotFound
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.classes import ClassAnnouncement, ConsentAsked, ConsentGiven, ConsentWithdrawn
from commonage.domain.resources import Document, StoredResource
from commonage.domain.windows import Window
from commonage.domain.workloads import Event, EventKind, Workload
from commonage.ports.clock import Clock
from commonage.ports.store import Store
from commonage.resources.classes import with_files
from commonage.resources.documents import parse

KIND = "Class"
MAX_MESSAGE = 1000


@dataclass(frozen=True, slots=True)
class Seat:
    """A student of a class. `consent` is that for the teacher who looks, None if there was no question."""

    student: str
    state: SeatState
    reason: Reason
    workload: Workload | None
    consent: Consent | None


@dataclass(frozen=True, slots=True)
class ClassView:
    """A class for one reader. `teaches`: the reader may change it. `attends`: the reader is on its roster.

    `meeting` is the one that is on, `next_meeting` that or the next one. `seats` are empty for those who do not teach.
    `reason`: why room for it is missing.
    """

    one: Class
    resource: StoredResource
    teaches: bool
    attends: bool
    meeting: ClassMeeting | None
    next_meeting: Window | None
    reason: Reason | None
    seats: tuple[Seat, ...] = ()
    session: Workload | None = None

    @property
    def counts(self) -> dict[SeatState, int]:
        return counts([seat.state for seat in self.seats])


@dataclass(slots=True)
class Classes:
    store: Store
    writer: Writer
    clock: Clock
    settings: ControlSettings
    resources: Resources
    reservations: Reservations
    meetings: Meetings
    seats: Seats
    loop: ClassLoop

    # --- queries ----------------------------------------------------------------------------------------------------

    def visible(self, principal: Principal) -> Sequence[ClassView]:
        """Those of the tenants that the caller sees, and those that the caller attends; the next meeting first."""
        principal.need(Scope.READ)
        found = [self._view(principal, one) for one in self._seen(principal)]
        return sorted(found, key=lambda view: ((view.next_meeting or (float("inf"),))[0], view.one.name))

    def one(self, principal: Principal, name: str) -> ClassView:
        """One class, with its seats for those who teach. Raises NotFound, also if the caller may not see it."""
        principal.need(Scope.READ)
        found = next((one for one in self._seen(principal) if one.name == name), None)
        if found is None:
            there = ", ".join(one.name for one in self._seen(principal)) or "none"
            raise NotFound(f"you see no class {name[:60]!r}; there are: {there}", code="class-not-found")
        view = self._view(principal, found)
        return replace(view, seats=tuple(self._seats(principal, found))) if view.teaches else view

    def attended(self, principal: Principal) -> Sequence[ClassView]:
        """The classes of the caller whose meeting is on: for notices on every page."""
        classes = [one for one in self.settings.classes.values() if self._attends(principal, one)]
        return [view for view in (self._view(principal, one) for one in classes) if view.meeting is not None]

    def concern(self, principal: Principal) -> bool:
        """Whether the caller teaches, or sees a class."""
        return bool(self._seen(principal) or access_of(principal, self.settings).tenants(Permission.TEACH))

    def _seen(self, principal: Principal) -> Sequence[Class]:
        access = access_of(principal, self.settings)
        return [
            one
            for one in self.settings.classes.values()
            if access.may(Permission.SEE_TENANT, one.tenant) or self._attends(principal, one)
        ]

    def _attends(self, principal: Principal, one: Class) -> bool:
        return principal.name in one.users or any(group in principal.groups for group in one.groups)

    def _view(self, principal: Principal, one: Class) -> ClassView:
        attends = self._attends(principal, one)
        reason = self.loop.not_reserved(one)
        if reason is None:
            reasons = (self.reservations.shortfalls(reserved) for reserved in self.reservations.of_class(one.name))
            reason = next((each for each in reasons if each is not None), None)
        session = self.seats.session(one.name, principal.name) if attends else None
        return ClassView(
            one=one,
            resource=self._resource(one.name),
            teaches=access_of(principal, self.settings).may(Permission.TEACH, one.tenant),
            attends=attends,
            meeting=self.meetings.current(one),
            next_meeting=one.next_meeting(self.clock.now()),
            reason=reason,
            session=None if session is None or session.state.is_terminal else session,
        )

    def _resource(self, name: str) -> StoredResource:
        found = next((one for one in self.resources.of_kind(KIND) if one.name == name), None)
        if found is None:  # between a change of the resources and this call
            raise NotFound(f"there is no class {name[:60]!r}", code="class-not-found")
        return found

    def _seats(self, principal: Principal, one: Class) -> Sequence[Seat]:
        meeting, now = self.meetings.current(one), self.clock.now()
        since = (meeting.starts_at - one.ahead_s) if meeting is not None else now
        found = []
        for student in self.loop.roster(one):
            failed = None if meeting is None else self.loop.failure(meeting, student)
            seen = self.seats.observed(one, student, since, failed)
            state, reason = seat_of(seen, now)
            workload = None if seen.state is None else self.seats.session(one.name, student)
            consent = None if meeting is None else meeting.consent(student, principal.name)
            found.append(Seat(student, state, reason, workload, consent))
        return found

    # --- changes by teachers ----------------------------------------------------------------------------------------

    async def put(
        self,
        principal: Principal,
        name: str,
        document: Document,
        version: int = ANY_VERSION,
        *,
        roster: str | None = None,
        calendar: str | None = None,
    ) -> ClassView:
        """Create (version 0) or replace a class, and reserve its times. The texts of files are read for teachers only.

        Raises InvalidInput, Unschedulable, Conflict.
        """
        access = access_of(principal, self.settings)
        if not document.get("tenant"):
            parse({**document, "kind": KIND, "name": name})  # says that it is missing
        access.need(Permission.TEACH, str(document.get("tenant", "")))
        before = self.settings.classes.get(name)
        if before is not None and before not in self._seen(principal):
            raise Conflict(f"the name {name} is taken by a class of another tenant; choose another name")
        if before is not None:
            access.need(Permission.TEACH, before.tenant)
        document = with_files(document, roster, calendar)
        key, _ = parse({**document, "kind": KIND, "name": name})
        await self.resources.put_for(principal.name, document, version, kind=key[0], name=name)
        await self.loop.reserve()
        await self.loop.stop_without_class()
        return self.one(principal, name)

    async def delete(self, principal: Principal, name: str, *, force: bool = False) -> Class:
        """Delete a class with its reservations; while its sessions run only with `force`, which stops them."""
        found = self.one(principal, name).one
        access_of(principal, self.settings).need(Permission.TEACH, found.tenant)
        await self.resources.delete_for(principal.name, KIND, name, ANY_VERSION, force=force)
        await self.loop.reserve()
        await self.loop.stop_without_class()
        return found

    async def announce(self, principal: Principal, name: str, text: str) -> ClassView:
        """Send a message to all students of the meeting: shown in the portal, and as an event of each session."""
        one, meeting = self._taught(principal, name)
        text = " ".join(text.split())
        if not 1 <= len(text) <= MAX_MESSAGE:
            raise InvalidInput(f"a message has from 1 to {MAX_MESSAGE} characters, not {len(text)}", field="text")
        now = self.clock.now()
        reason = ClassAnnouncement(by=principal.name, class_name=one.name, text=text)
        events = [self._event(one, now, reason)]
        events += [
            Event(
                EventKind.WARNING, now, reason, session.id,
                None if session.attempt is None else session.attempt.id, session.spec.owner, session.spec.tenant,
                session.state,
            )
            for session in self.seats.live(one)
        ]  # fmt: skip
        await self.meetings.put(replace(meeting, announcement=Announcement(text, principal.name, now)), events)
        return self.one(principal, name)

    async def ask(self, principal: Principal, name: str, student: str) -> Consent:
        """Ask a student to be let into the session. Asking again after a refusal is a new question."""
        one, meeting = self._taught(principal, name)
        if student not in self.loop.roster(one):
            raise NotFound(f"{student[:60]!r} is not on the roster of class {one.name}", code="student-not-found")
        before = meeting.consent(student, principal.name)
        if before is not None and before.given is not False:
            return before
        asked = Consent(student, principal.name, None, self.clock.now())
        reason = ConsentAsked(by=principal.name, student=student, class_name=one.name)
        await self._put_consent(one, meeting, asked, reason)
        return asked

    def _taught(self, principal: Principal, name: str) -> tuple[Class, ClassMeeting]:
        one = self.one(principal, name).one
        access_of(principal, self.settings).need(Permission.TEACH, one.tenant)
        return one, self._meeting(one)

    def _meeting(self, one: Class) -> ClassMeeting:
        meeting = self.meetings.current(one)
        if meeting is None:
            raise Conflict(
                f"Class {one.name} has no meeting now. Wait for its next meeting, or change its times.",
                code="no-meeting",
            )
        return meeting

    # --- students ---------------------------------------------------------------------------------------------------

    async def answer(self, principal: Principal, name: str, teacher: str, *, given: bool) -> Consent:
        """A student lets a teacher in, or (no longer) does not. A visit ends within seconds of the refusal.

        To let in needs a scope that tokens of sessions lack, so that no notebook answers for its user.
        """
        principal.need(Scope.MANAGE if given else Scope.SUBMIT)
        one = self._attended(principal, name)
        meeting = self._meeting(one)
        if meeting.consent(principal.name, teacher) is None:
            raise NotFound(f"{teacher[:60]!r} has not asked to open your session", code="consent-not-asked")
        answer = Consent(principal.name, teacher, given, self.clock.now())
        kind = ConsentGiven if given else ConsentWithdrawn
        await self._put_consent(
            one, meeting, answer, kind(student=principal.name, teacher=teacher, class_name=one.name)
        )
        return answer

    async def start(self, principal: Principal, name: str) -> Workload:
        """The student's session in the meeting, started if it does not run. Raises Forbidden, Conflict."""
        principal.need(Scope.SUBMIT)
        one = self._attended(principal, name)
        meeting, found = self._meeting(one), self.seats.session(one.name, principal.name)
        if found is not None and not found.state.is_terminal:
            return found
        again = "" if found is None else f"-after-{found.id}"
        self.loop.need_member(one, principal.name, principal.groups)
        return await self.loop.start(self.loop.spec(one, meeting, principal.name, again))

    def _attended(self, principal: Principal, name: str) -> Class:
        one = self.settings.classes.get(name)
        if one is None or not self._attends(principal, one):
            raise NotFound(f"you are on the roster of no class {name[:60]!r}", code="class-not-found")
        return one

    async def _put_consent(self, one: Class, meeting: ClassMeeting, consent: Consent, reason: Reason) -> None:
        session = self.seats.session(one.name, consent.student)
        event = Event(
            EventKind.AUDIT,
            consent.at,
            reason,
            workload_id=None if session is None else session.id,
            owner=consent.student,
            tenant=one.tenant,
        )
        await self.meetings.put(meeting.with_consent(consent), [event])

    def _event(self, one: Class, at: float, reason: Reason) -> Event:
        return Event(EventKind.AUDIT, at, reason, tenant=one.tenant)
