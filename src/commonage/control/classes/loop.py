"""The loop of classes: reserves their times, pulls the image, starts the sessions before each meeting, and ends them.

Sessions are started through the hub, as if each student had requested one, so that the student who signs in finds it.
Each is started once in a meeting: its client key is made from class and meeting. What failed is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from commonage.control.access import access_of
from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.catalogue.prepulls import Prepulls
from commonage.control.classes.meetings import KEEP_S, Meetings
from commonage.control.classes.seats import Seats
from commonage.control.reservations import Reservations, Wanted
from commonage.control.settings import ControlSettings
from commonage.control.signals import cancel_all, wait_at_most
from commonage.control.state.feed import event_of
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.workloads.submission import Submission, spec_of
from commonage.domain.classes import AtEnd, Class, ClassMeeting, session_key
from commonage.domain.errors import CommonageError, Conflict, Forbidden, NotFound, start_failure
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import StopRequested
from commonage.domain.nodes import NodeState
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import ServerStopped
from commonage.domain.reasons.classes import (
    ClassEnded,
    ClassEnds,
    ClassNotReserved,
    ClassOver,
    LeftRoster,
    SeatFailed,
    StudentNotMember,
    StudentUnknown,
)
from commonage.domain.volumes import VolumeRequest
from commonage.domain.workloads import EventKind, Kind, Spec, StopCause, StopRequest, Workload
from commonage.ports.clock import Clock
from commonage.ports.identity import Identity
from commonage.ports.store import Store

log = logging.getLogger(__name__)
BY = "class"
"""The author of what the platform does for a class, in audit events and stop requests: `class NAME`."""
LONGEST_REST_S = 5.0
GROUPS_KNOWN_S = 30.0
PULL_AHEAD_S = 1800.0  # before the first session: a large image takes that long on a slow network
STARTS_AT_ONCE = 10  # requests to the hub; each node also limits its own starts
RETRY_S = 15.0

Start = Callable[[Spec], Awaitable[Workload]]


@dataclass(frozen=True, slots=True)
class _Failed:
    reason: Reason
    again_at: float


@dataclass(slots=True)
class ClassLoop:
    """`start` has the hub start a session with this spec, and returns the workload."""

    store: Store
    live_state: LiveState
    writer: Writer
    catalogue: Catalogue
    prepulls: Prepulls
    identity: Identity
    reservations: Reservations
    clock: Clock
    settings: ControlSettings
    meetings: Meetings
    seats: Seats
    start: Start
    _reserved: dict[str, Class] = field(default_factory=dict)  # those whose reservations are as declared
    _refused: dict[str, Reason] = field(default_factory=dict)  # why a class has no reservation, by its name
    _members: dict[str, Sequence[str]] = field(default_factory=dict)  # by group
    _members_at: float = -GROUPS_KNOWN_S
    _pulled: set[str] = field(default_factory=set)  # meetings
    _done: set[tuple[str, str]] = field(default_factory=set)  # (meeting, student): was started
    _failed: dict[tuple[str, str], _Failed] = field(default_factory=dict)
    _starting: dict[tuple[str, str], asyncio.Task[None]] = field(default_factory=dict)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STARTS_AT_ONCE))
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _reserving: asyncio.Lock = field(default_factory=asyncio.Lock)
    iterations: Iterations = field(init=False)

    def __post_init__(self) -> None:
        self.iterations = Iterations("classes", self.clock.now)

    def declared(self) -> None:
        """Called when resources have changed."""
        self.seats.read_live()
        self._changed.set()

    def roster(self, one: Class) -> list[str]:
        """The students, by name: those of its groups as the hub answered within the last half minute."""
        return sorted({*one.users, *(user for group in one.groups for user in self._members.get(group, ()))})

    def failure(self, meeting: ClassMeeting, student: str) -> Reason | None:
        """Why the student's session could not be started."""
        found = self._failed.get((meeting.id, student))
        return None if found is None else found.reason

    def not_reserved(self, one: Class) -> Reason | None:
        """Why not all of its meetings have a reservation."""
        return self._refused.get(one.name)

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self.tick()
                except CommonageError as error:
                    log.warning("classes are looked at again: %s", error)
                with self.iterations.rest():
                    await wait_at_most(LONGEST_REST_S, self._changed, self.clock)
                self._changed.clear()
        finally:
            await cancel_all(list(self._starting.values()))

    async def tick(self) -> None:
        now = self.clock.now()
        self.seats.forget()
        await self.reserve()
        await self.stop_without_class()
        meetings = {one.name: meeting for one in self._classes() if (meeting := self.meetings.current(one)) is not None}
        if any(one.groups for one in self._classes()) and now - self._members_at >= GROUPS_KNOWN_S:
            await self._read_groups()
        for one in self._classes():
            self._pull(one, now)
            if one.name in meetings:
                await self._hold(one, meetings[one.name], now)
        await self._end_others({one.id for one in meetings.values()}, now)

    def _classes(self) -> Sequence[Class]:
        return list(self.settings.classes.values())

    # --- reservations -----------------------------------------------------------------------------------------------

    async def reserve(self) -> None:
        """Make the reservations of all classes as they are declared. Raises Unavailable."""
        async with self._reserving:
            known = self.settings.classes
            for name in {*self._reserved, *(one.class_name for one in self.reservations.rules.reservations)} - {
                *known,
                "",
            }:
                await self.reservations.follow_class(f"{BY} {name}", name, None)
                self._reserved.pop(name, None)
                self._refused.pop(name, None)
            for one in self._classes():
                if self._reserved.get(one.name) != one or one.name in self._refused:
                    await self._reserve(one)

    async def _reserve(self, one: Class) -> None:
        places = list(one.places(self.clock.now()))
        wanted = Wanted(one.tenant, places, one.request, one.seats, one.text)
        refused = await self.reservations.follow_class(f"{BY} {one.name}", one.name, wanted)
        self._reserved[one.name] = one
        self._refused.pop(one.name, None)
        if refused is not None:
            self._refused[one.name] = ClassNotReserved(class_name=one.name, cause=refused)

    # --- before and during a meeting --------------------------------------------------------------------------------

    async def _read_groups(self) -> None:
        """A hub that does not answer leaves the members as they were."""
        read_at = self.clock.now()
        for group in sorted({group for one in self._classes() for group in one.groups}):
            members = await self.identity.group(group)
            self._members[group] = () if members is None else tuple(members)
        self._members_at = read_at

    def _pull(self, one: Class, now: float) -> None:
        """Have the image of the class pulled onto the nodes that the tenant may use."""
        place = next(one.places(now), None)
        image = None if place is None else self.catalogue.image_of(one.environment or self.settings.session_environment)
        if place is None or image is None or place[0] - PULL_AHEAD_S > now:
            return
        key = f"{one.name}@{place[0]}"
        if key not in self._pulled:
            self._pulled.add(key)
            sites = self.live_state.snapshot.rules.sites_of(one.tenant)
            nodes = self.live_state.nodes.values()
            self.prepulls.request(
                image, [node.key for node in nodes if node.state is NodeState.READY and node.site in sites]
            )

    async def _hold(self, one: Class, meeting: ClassMeeting, now: float) -> None:
        if now < meeting.ends_at:
            students = self.roster(one)
            for student in students:
                self._start_soon(one, meeting, student, now)
            await self._stop_others(one, students)
        elif one.at_end is AtEnd.STOP and not meeting.warned:
            stops_at = meeting.ends_at + one.grace_s
            events = [
                event_of(session, EventKind.WARNING, now, ClassEnds(class_name=one.name, stops_at=stops_at))
                for session in self.seats.live(one)
            ]
            await self.meetings.put(replace(meeting, warned=True), events)

    def _start_soon(self, one: Class, meeting: ClassMeeting, student: str, now: float) -> None:
        key = (meeting.id, student)
        failed = self._failed.get(key)
        if key in self._done or key in self._starting or (failed is not None and failed.again_at > now):
            return
        task = asyncio.create_task(self._start(one, meeting, student), name=f"class {one.name}: {student}")
        self._starting[key] = task
        task.add_done_callback(lambda _: self._starting.pop(key, None))

    async def _start(self, one: Class, meeting: ClassMeeting, student: str) -> None:
        """Start the student's session, unless it was started in this meeting. Raises no CommonageError."""
        key = (meeting.id, student)
        try:
            async with self._slots:
                found = self.seats.session(one.name, student)
                if found is None or found.state.is_terminal:
                    # A server that stopped its sessions when it stopped starts them again.
                    again = found is not None and isinstance(found.reason, ServerStopped)
                    await self._start_once(one, meeting, student, f"-after-{found.id}" if again and found else "")
            self._done.add(key)
            self._failed.pop(key, None)
        except CommonageError as error:
            reason = start_failure(error)
            if isinstance(error, NotFound) and error.problem_code == "user-not-found":
                reason = StudentUnknown(user=student)
            elif not isinstance(error, Conflict | Forbidden):  # the hub is still ending an earlier session
                log.warning("class %s: the session of %s is not started yet: %s", one.name, student, error)
            self._failed[key] = _Failed(SeatFailed(cause=reason), self.clock.now() + RETRY_S)

    async def _start_once(self, one: Class, meeting: ClassMeeting, student: str, again: str) -> None:
        spec = self.spec(one, meeting, student, again)
        if spec.key is not None and await self.store.workload_by_key(student, spec.key) is not None:
            return
        if meeting.id not in {known.id for known in self.meetings.all()}:
            await self.meetings.put(meeting)
        account = await self.identity.account(student)
        self.need_member(one, student, () if account is None else account.groups)
        if self.settings.class_users and account is None:
            await self.identity.ensure_user(student)
        await self.start(spec)

    def need_member(self, one: Class, student: str, groups: Sequence[str]) -> None:
        """Raise Forbidden for a user without a role in the tenant: no roster starts anything with a stranger's home."""
        known = (*groups, *(group for group, users in self._members.items() if student in users))
        roles = access_of(Principal(student, frozenset(), known), self.settings).roles_in(one.tenant)
        if not any(role.permits(Permission.SUBMIT) for role in roles):
            raise Forbidden(StudentNotMember(user=student, tenant=one.tenant), code="not-a-member")

    def spec(self, one: Class, meeting: ClassMeeting, student: str, again: str) -> Spec:
        """The session of a student in a meeting. `again` makes its key another one than that of an earlier start."""
        submission = Submission(
            kind=Kind.SESSION,
            name=one.name,
            environment=one.environment,
            cpus_milli=one.request.cpus_milli,
            memory_mib=one.request.memory_mib,
            gpu=one.request.gpu,
            volumes=(VolumeRequest(one.material),) if one.material else (),
            tenant=one.tenant,
            owner=student,
            key=session_key(one.name, meeting.starts_at) + again,
            class_meeting=meeting.id,
            requeue=True,
        )
        return spec_of(submission, Principal(f"{BY} {one.name}", _ALL), self.catalogue, self.settings)

    async def _stop_others(self, one: Class, students: Sequence[str]) -> None:
        """Stop the sessions of users who left the roster. While the members of a group are unknown, no session is
        stopped.
        """
        if any(group not in self._members for group in one.groups):
            return
        for session in self.seats.live(one):
            # A user who joined the group after it was read may already have a session.
            is_judged = not one.groups or session.submitted_at < self._members_at
            if session.spec.owner not in students and is_judged:
                await self._stop(session, one.name, LeftRoster(class_name=one.name))

    # --- after a meeting --------------------------------------------------------------------------------------------

    async def _end_others(self, current: set[str], now: float) -> None:
        """End the meetings that are over, also those that ended while the server was down."""
        for meeting in self.meetings.all():
            if meeting.id in current:
                continue
            one = self.settings.classes.get(meeting.class_name)
            if not meeting.over:
                other = one is not None and any(known.startswith(f"{one.name}@") for known in current)
                if one is not None and one.at_end is AtEnd.STOP and not other:
                    for session in self.seats.live(one):
                        await self._stop(session, one.name, ClassOver(class_name=one.name))
                await self.meetings.put(replace(meeting, over=True))
            elif now > meeting.ends_at + KEEP_S:
                await self.meetings.remove(meeting)
        keep = {one.id for one in self.meetings.all()} | current
        self._done = {key for key in self._done if key[0] in keep}
        self._failed = {key: one for key, one in self._failed.items() if key[0] in current}

    async def stop_without_class(self) -> None:
        """Stop the sessions of classes that were deleted or moved to another tenant. Raises Unavailable."""
        for session in self.seats.without_class():
            name = session.spec.class_name
            await self._stop(session, name, ClassEnded(class_name=name))

    async def _stop(self, session: Workload, name: str, reason: Reason) -> None:
        if session.stop is None:
            stop = StopRequest(f"{BY} {name}", self.clock.now(), StopCause.ADMIN, reason)
            await self.writer.apply(session.id, StopRequested(stop))


_ALL = frozenset({Scope.READ, Scope.SUBMIT, Scope.MANAGE, Scope.ADMIN})
