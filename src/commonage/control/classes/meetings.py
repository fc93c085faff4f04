"""Events in meetings: messages to all, and the consent of students to let a teacher into their session.

The only writer of `ClassMeeting`. Visits and commands in workloads ask here whether a consent is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.control.state.writer import Writer
from commonage.domain.classes import Class, ClassMeeting, meeting_id
from commonage.domain.errors import Forbidden
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons.classes import ConsentNeeded
from commonage.domain.workloads import Event, Spec, Workload
from commonage.ports.clock import Clock
from commonage.ports.store import Store

KEEP_S = 86_400.0


@dataclass(slots=True)
class Meetings:
    store: Store
    writer: Writer
    clock: Clock
    settings: ControlSettings
    _known: dict[str, ClassMeeting] = field(default_factory=dict)

    async def open(self) -> None:
        self._known = {one.id: one for one in await self.store.class_meetings()}

    def all(self) -> Sequence[ClassMeeting]:
        return list(self._known.values())

    def current(self, one: Class) -> ClassMeeting | None:
        """The meeting that is on, or whose sessions start now."""
        window = one.meeting(self.clock.now())
        if window is None:
            return None
        starts_at, ends_at = window
        found = self._known.get(meeting_id(one.name, starts_at))
        made = found or ClassMeeting(meeting_id(one.name, starts_at), one.name, starts_at, ends_at)
        return replace(made, ends_at=ends_at)

    def are_on(self, spec: Spec) -> bool:
        """Whether this is a session of a class whose meeting is on, from the start of its sessions to their end."""
        one = self.settings.classes.get(spec.class_name)
        return one is not None and one.has(spec) and self.current(one) is not None

    async def put(self, meeting: ClassMeeting, events: Sequence[Event] = ()) -> None:
        """Durable when this returns. Raises Unavailable."""
        await self.writer.write(events=events, class_meetings=[meeting])
        self._known[meeting.id] = meeting

    async def remove(self, meeting: ClassMeeting) -> None:
        await self.writer.write(removed_class_meetings=[meeting.id])
        self._known.pop(meeting.id, None)

    def let_in(self, spec: Spec) -> Sequence[str] | None:
        """The users that may now open the session of a student in a class; None: the workload is not a session of a
        class.
        """
        one = self.settings.classes.get(spec.class_name or spec.name)
        if one is None or not one.has(spec):
            return () if spec.class_name else None
        meeting = self.current(one)
        consents = () if meeting is None else meeting.consents
        return [one.teacher for one in consents if one.student == spec.owner and one.given]

    def consent_missing(self, principal: Principal, workload: Workload) -> ConsentNeeded | None:
        """Why this user may not enter a session of a class; None if it is another workload, or the student agrees.

        What a session belongs to was written down when it started: without its class, or outside its meetings, nobody
        has a consent. Admins decide about the platform, and need none.
        """
        spec = workload.spec
        let_in = self.let_in(spec)
        if let_in is None or principal.name in (spec.owner, *let_in):
            return None
        if access_of(principal, self.settings).may(Permission.MANAGE_PLATFORM):
            return None
        return ConsentNeeded(student=spec.owner, class_name=spec.class_name or spec.name)

    def need_consent(self, principal: Principal, workload: Workload) -> None:
        """Raise Forbidden unless the user may enter."""
        missing = self.consent_missing(principal, workload)
        if missing is not None:
            raise Forbidden(missing, code="consent-needed")
