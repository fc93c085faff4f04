"""Classes: their room, sessions that start before a meeting and stop after it, messages, and consent."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.control.world import ROOT, SPAWNER, USER, Site

from commonage.control.classes.classes import ClassView
from commonage.control.control import Control
from commonage.control.workloads.submission import Submission, spec_of
from commonage.domain.classes import SeatState
from commonage.domain.errors import Conflict, Forbidden, InvalidInput, NotFound, Unschedulable
from commonage.domain.idle import Activity, IdleAction, IdleRule
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import classes as reasons
from commonage.domain.reasons.attempts import OutOfMemory
from commonage.domain.requests import parse_gpus
from commonage.domain.workloads import EventKind, Kind, State, Workload
from commonage.ports.identity import Account
from commonage.testing import factories
from commonage.testing.factories import NOW

pytestmark = pytest.mark.anyio
TEACHER = Principal("grace", USER | {Scope.MANAGE})
ADA_HERSELF = Principal("ada", TEACHER.scopes)
ADA, BOB, EVE = (Principal(name, USER) for name in ("ada", "bob", "eve"))
MINUTE = 3.0  # a short one: the clock of these tests visits each sleep of each loop
COURSE = {
    "kind": "Tenant",
    "name": "course",
    "members": [
        {"user": "grace", "role": "teacher"},
        *({"user": name, "role": "member"} for name in ("ada", "bob", "cho")),
    ],
    "nominal": {"vram": "16GiB", "running": 4},
}


@pytest.fixture
def site() -> Site:
    found = Site([factories.node("gpu-1", 2)], samples_itself=False, session_origin="https://*.hub.test")
    found.declared = {"Tenant": [COURSE]}
    found.hub.users = {name: Account(name) for name in ("ada", "bob", "cho")}
    return found


class Hub:
    """Its spawner submits what the control plane asks for."""

    def __init__(self, site: Site, control: Control) -> None:
        self.control = control
        site.hub.spawn = self.spawn

    async def spawn(self, user: str, name: str, options: Mapping[str, Any]) -> None:
        ask = Submission(
            Kind.SESSION, name=name, owner=user, key=options["key"], tenant=options["tenant"],
            gpu=parse_gpus(options.get("gpus")), cpus_milli=100, memory_mib=256, class_meeting=options["class_meeting"],
        )  # fmt: skip
        await self.control.workloads.submit(SPAWNER, ask)


def text(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def document(start: float = 20 * MINUTE, end: float = 80 * MINUTE, **fields: Any) -> dict[str, Any]:
    times = [{"starts": text(NOW + start), "ends": text(NOW + end)}]
    share = {"gpus": "4GiB", "cpus": 0.1, "memory": "256MiB", "ahead": "30s", "grace": "15s"}
    return {"tenant": "course", "users": ["ada", "bob"], "times": times, **share, **fields}


async def put(control: Control, principal: Principal = TEACHER, **fields: Any) -> ClassView:
    return await control.classes.put(principal, "ml", document(**fields))


def sessions(site: Site) -> dict[str, Workload]:
    return {one.spec.owner: one for one in site.all()}


def states(view: ClassView) -> dict[str, SeatState]:
    return {seat.student: seat.state for seat in view.seats}


async def test_sessions_start_before_the_meeting_once_and_stop_after_it(site: Site, control: Control) -> None:
    Hub(site, control)
    view = await put(control)
    [reserved] = control.reservations.of_class("ml")
    assert (reserved.count, reserved.starts_at, reserved.ends_at) == (2, NOW + 10 * MINUTE, NOW + 85 * MINUTE)
    assert (view.reason, states(view)) == (None, dict.fromkeys(("ada", "bob"), SeatState.NOT_STARTED))
    await site.clock.advance(9 * MINUTE)
    assert site.all() == []
    await site.clock.advance(2 * MINUTE)
    assert {name: one.state for name, one in sessions(site).items()} == dict.fromkeys(("ada", "bob"), State.RUNNING)
    assert {(one.spec.name, one.spec.tenant) for one in site.all()} == {("ml", "course")}
    await control.workloads.stop(ADA, sessions(site)["ada"].id)  # it is not started against her will
    await site.clock.advance(69 * MINUTE)
    assert len(site.all()) == 2
    warned = [event for event in site.store.shelf.events if isinstance(event.reason, reasons.ClassEnds)]
    assert [(event.owner, event.kind) for event in warned] == [("bob", EventKind.WARNING)]
    assert sessions(site)["bob"].state is State.RUNNING
    await site.clock.advance(6 * MINUTE)
    bob = sessions(site)["bob"]
    assert (bob.state, bob.reason) == (State.STOPPED, reasons.ClassOver(class_name="ml"))
    [meeting] = site.store.shelf.class_meetings.values()
    assert (meeting.warned, meeting.over) == (True, True)


async def test_a_restart_starts_nobody_twice_and_ends_what_ended_meanwhile(site: Site) -> None:
    async with site.open() as control:
        Hub(site, control)
        await put(control)
        await site.clock.advance(11 * MINUTE)
    async with site.open() as control:
        Hub(site, control)
        await site.clock.advance(MINUTE)
        assert len(site.all()) == 2
        assert set(states(control.classes.one(TEACHER, "ml")).values()) == {SeatState.STARTED}
    await site.clock.advance(90 * MINUTE)
    async with site.open() as control:
        await site.clock.advance(10)
        assert site.states() == [State.STOPPED] * 2


async def test_kept_sessions_go_on_after_the_meeting(site: Site, control: Control) -> None:
    Hub(site, control)
    await put(control, at_end="keep")
    await site.clock.advance(120 * MINUTE)
    assert site.states() == [State.RUNNING] * 2


async def test_a_changed_roster_takes_effect_during_the_meeting(site: Site, control: Control) -> None:
    Hub(site, control)
    await put(control, seats=3)
    await site.clock.advance(11 * MINUTE)
    await put(control, seats=3, users=["ada", "cho"])
    await site.clock.advance(10)
    found = sessions(site)
    assert (found["cho"].state, found["ada"].state) == (State.RUNNING, State.RUNNING)
    assert (found["bob"].state, found["bob"].reason) == (State.STOPPED, reasons.LeftRoster(class_name="ml"))


async def test_members_of_a_group_are_students(site: Site, control: Control) -> None:
    Hub(site, control)
    site.hub.members = {"team": {"cho"}}
    await put(control, users=[], groups=["team"], seats=2)
    await site.clock.advance(11 * MINUTE)
    assert list(sessions(site)) == ["cho"]
    site.hub.members = {"team": {"cho", "ada"}}
    await site.clock.advance(40)
    assert sorted(sessions(site)) == ["ada", "cho"]
    cho = Principal("cho", USER, ("team",))
    assert [view.one.name for view in control.classes.attended(cho)] == ["ml"]


async def test_a_session_of_a_member_who_has_just_joined_the_group_goes_on(site: Site, control: Control) -> None:
    Hub(site, control)
    site.hub.members = {"team": {"cho"}}
    await put(control, users=[], groups=["team"], seats=2)
    await site.clock.advance(11 * MINUTE)
    site.hub.members = {"team": {"cho", "ada"}}  # signs in, and opens the class before its group is read again
    starting = asyncio.create_task(control.classes.start(Principal("ada", USER, ("team",)), "ml"))
    await site.clock.advance(5)
    started = await starting
    await site.clock.advance(60)
    assert sessions(site)["ada"].id == started.id
    assert sessions(site)["ada"].state is State.RUNNING
    site.hub.members = {"team": {"cho"}}
    await site.clock.advance(60)
    assert sessions(site)["ada"].reason == reasons.LeftRoster(class_name="ml")


async def test_a_start_that_fails_is_shown_and_tried_again(site: Site, control: Control) -> None:
    async def refuse(user: str, name: str, options: Mapping[str, Any]) -> None:
        raise NotFound("no such user", code="user-not-found")

    site.hub.spawn = refuse
    await put(control, users=["ada"])
    await site.clock.advance(11 * MINUTE)
    [seat] = control.classes.one(TEACHER, "ml").seats
    assert seat.reason == reasons.SeatFailed(cause=reasons.StudentUnknown(user="ada"))
    Hub(site, control)
    await site.clock.advance(30)
    assert [seat.state for seat in control.classes.one(TEACHER, "ml").seats] == [SeatState.STARTED]


@pytest.mark.parametrize(
    ("fields", "resource"),
    [({"gpus": "9GiB"}, "gpu-memory"), ({"users": ["a", "b", "c", "d", "e"], "gpus": "1GiB"}, "running")],
)
async def test_more_seats_than_the_quota_has_are_refused(
    control: Control, fields: dict[str, Any], resource: str
) -> None:
    with pytest.raises(Unschedulable) as refused:
        await put(control, **fields)
    reason = refused.value.reason
    assert isinstance(reason, reasons.ClassOverQuota)
    assert reason.cause.resource == resource  # type: ignore[attr-defined]  # a reason of quotas
    assert control.reservations.of_class("ml") == []


async def test_classes_at_the_same_time_share_the_quota(control: Control) -> None:
    await put(control)
    with pytest.raises(Unschedulable):
        await control.classes.put(TEACHER, "other", document(gpus="5GiB"))
    later = document(start=100 * MINUTE, end=160 * MINUTE, gpus="5GiB")
    assert (await control.classes.put(TEACHER, "other", later)).reason is None


async def test_room_that_nodes_lack_is_said(site: Site, control: Control) -> None:
    tenant = {**COURSE, "nominal": {}}
    await control.resources.put(ROOT, tenant, -1, kind="Tenant", name="course")
    view = await put(control, users=[], seats=500, gpus="8GiB")
    assert isinstance(view.reason, reasons.ClassNotReserved)


async def test_a_reservation_of_a_class_follows_it_alone(control: Control) -> None:
    await put(control)
    [reserved] = control.reservations.of_class("ml")
    with pytest.raises(Conflict, match="belongs to class ml"):
        await control.reservations.remove(ROOT, reserved.id)
    await put(control, start=30 * MINUTE)
    [moved] = control.reservations.of_class("ml")
    assert moved.starts_at == NOW + 20 * MINUTE
    await control.classes.delete(TEACHER, "ml")
    assert control.reservations.of_class("ml") == []


async def test_only_teachers_of_the_tenant_change_a_class(control: Control) -> None:
    for principal in (ADA, Principal("kurt", TEACHER.scopes)):
        with pytest.raises(Forbidden):
            await put(control, principal)
    await put(control)
    with pytest.raises(Forbidden):
        await control.classes.announce(ADA, "ml", "hello")
    with pytest.raises(NotFound):
        control.classes.one(EVE, "ml")
    mine = control.classes.one(ADA, "ml")
    assert (mine.attends, mine.teaches, mine.seats) == (True, False, ())


async def test_files_of_those_who_do_not_teach_are_not_read(control: Control) -> None:
    with pytest.raises(Forbidden):
        await control.classes.put(ADA, "ml", document(), calendar="no calendar")
    with pytest.raises(InvalidInput, match="VCALENDAR"):
        await control.classes.put(TEACHER, "ml", document(), calendar="no calendar")


async def test_a_message_reaches_all_students(site: Site, control: Control) -> None:
    Hub(site, control)
    await put(control)
    with pytest.raises(Conflict, match="no meeting"):
        await control.classes.announce(TEACHER, "ml", "too early")
    await site.clock.advance(11 * MINUTE)
    with pytest.raises(InvalidInput):
        await control.classes.announce(TEACHER, "ml", "  ")
    await control.classes.announce(TEACHER, "ml", "Save  your\nwork.")
    said = [event for event in site.store.shelf.events if isinstance(event.reason, reasons.ClassAnnouncement)]
    assert sorted(event.owner or "" for event in said) == ["", "ada", "bob"]
    [view] = control.classes.attended(ADA)
    assert view.meeting is not None and view.meeting.announcement is not None
    assert (view.meeting.announcement.text, view.meeting.announcement.by) == ("Save your work.", "grace")


async def test_a_session_is_entered_only_while_its_student_agrees(site: Site, control: Control) -> None:
    Hub(site, control)
    shared: list[tuple[str, str, str]] = []

    async def share_session(user: str, name: str, visitor: str) -> None:
        shared.append((user, name, visitor))

    site.hub.share_session = share_session  # type: ignore[attr-defined]  # of the identity port
    await put(control)
    await site.clock.advance(11 * MINUTE)
    session = sessions(site)["ada"]

    async def refused() -> None:
        with pytest.raises(Forbidden) as error:
            await control.visits.open(TEACHER, session.id)
        assert error.value.reason == reasons.ConsentNeeded(student="ada", class_name="ml")
        with pytest.raises(Forbidden):
            await control.execs.check(TEACHER, session.id)
        assert await control.visits.may_stay(ROOT, session.id, [TEACHER]) == []

    await refused()
    with pytest.raises(NotFound):
        await control.classes.answer(ADA_HERSELF, "ml", "grace", given=True)
    await control.classes.ask(TEACHER, "ml", "ada")
    await refused()
    with pytest.raises(NotFound):
        await control.classes.answer(Principal("eve", TEACHER.scopes), "ml", "grace", given=True)
    with pytest.raises(Forbidden, match="manage"):  # the token of the session, as a cell of a notebook has it
        await control.classes.answer(ADA, "ml", "grace", given=True)
    await control.classes.answer(ADA_HERSELF, "ml", "grace", given=True)
    await control.visits.open(TEACHER, session.id)
    assert shared == [("ada", "ml", "grace")]
    assert await control.visits.may_stay(ROOT, session.id, [TEACHER]) == [TEACHER]
    await control.classes.answer(ADA, "ml", "grace", given=False)
    await refused()
    audited = [type(event.reason).__name__ for event in site.store.shelf.events if event.kind is EventKind.AUDIT]
    assert audited[-4:] == ["ConsentAsked", "ConsentGiven", "SessionOpened", "ConsentWithdrawn"]


async def refuses_entry(control: Control, session: Workload, teacher: Principal = TEACHER) -> bool:
    with pytest.raises(Forbidden) as error:
        await control.execs.check(teacher, session.id)
    return error.value.problem_code == "consent-needed"


async def test_deleting_a_class_opens_no_session_and_stops_all(site: Site, control: Control) -> None:
    Hub(site, control)
    await put(control)
    await site.clock.advance(11 * MINUTE)
    ada = sessions(site)["ada"]
    assert ada.spec.class_meeting == f"ml@{int(NOW + 20 * MINUTE)}"
    with pytest.raises(Conflict):
        await control.classes.delete(TEACHER, "ml")
    await control.classes.delete(TEACHER, "ml", force=True)
    assert await refuses_entry(control, ada)
    await site.clock.advance(10)
    assert [(one.state, one.reason) for one in site.all()] == [
        (State.STOPPED, reasons.ClassEnded(class_name="ml")) for _ in range(2)
    ]


async def test_a_class_that_is_deleted_by_another_way_stops_its_sessions(site: Site, control: Control) -> None:
    Hub(site, control)
    await put(control, at_end="keep")
    await site.clock.advance(11 * MINUTE)
    await control.resources.delete(ROOT, "Class", "ml", -1, force=True)
    await site.clock.advance(10)
    assert site.states() == [State.STOPPED] * 2


async def test_a_class_that_moves_to_another_tenant_stops_its_sessions(site: Site, control: Control) -> None:
    Hub(site, control)
    other = {**COURSE, "name": "other"}
    await control.resources.put(ROOT, other, -1, kind="Tenant", name="other")
    await put(control)
    await site.clock.advance(11 * MINUTE)
    ada = sessions(site)["ada"]
    await put(control, tenant="other")
    assert await refuses_entry(control, ada)
    await site.clock.advance(10)
    assert site.states() == [State.STOPPED] * 2
    again = asyncio.create_task(control.classes.start(ADA, "ml"))
    await site.clock.advance(5)
    started = await again
    assert (started.spec.tenant, started.state.is_terminal) == ("other", False)


async def test_a_session_that_its_owner_starts_under_the_name_of_a_class_belongs_to_it(
    site: Site, control: Control
) -> None:
    await put(control)
    ask = Submission(Kind.SESSION, name="ml", owner="ada", tenant="course", key="own", cpus_milli=100, memory_mib=256)
    found = (await control.workloads.submit(SPAWNER, ask)).workloads[0]
    assert found.spec.class_name == "ml"
    await control.classes.delete(TEACHER, "ml", force=True)
    await site.clock.advance(10)
    assert site.states() == [State.STOPPED]


async def test_only_members_of_the_tenant_get_a_session(site: Site, control: Control) -> None:
    Hub(site, control)
    site.hub.users |= {"eve": Account("eve"), "root": Account("root", admin=True), "dan": Account("dan")}
    site.hub.members = {"course": {"dan"}}
    await put(control, users=["ada", "dan", "eve", "root"], gpus="1GiB")
    await site.clock.advance(11 * MINUTE)
    assert sorted(sessions(site)) == ["ada", "dan"]
    seats = {seat.student: seat.reason for seat in control.classes.one(TEACHER, "ml").seats}
    for name in ("eve", "root"):
        assert seats[name] == reasons.SeatFailed(cause=reasons.StudentNotMember(user=name, tenant="course"))
    with pytest.raises(Forbidden):
        await control.classes.start(EVE, "ml")
    members = [*COURSE["members"], {"user": "eve", "role": "member"}]
    await control.resources.put(ROOT, {**COURSE, "members": members}, -1, kind="Tenant", name="course")
    await site.clock.advance(30)
    assert sorted(sessions(site)) == ["ada", "dan", "eve"]


async def test_no_idle_rule_ends_a_session_while_its_meeting_is_on() -> None:
    site = Site([factories.node("gpu-1", 2)], idle=IdleRule(120, 20, IdleAction.STOP, 0))
    site.declared = {"Tenant": [COURSE]}
    site.hub.users = {"ada": Account("ada")}
    async with site.open() as control:
        Hub(site, control)
        await put(control, users=["ada"], at_end="keep")
        await site.clock.advance(11 * MINUTE)
        ada = sessions(site)["ada"]
        assert (control.idle.rule_of(ada.spec).after_s, control.idle.may_release(ada.spec)) == (0, False)
        with pytest.raises(Conflict) as refused:
            await control.extensions.release_gpu(ADA, ada.id)
        assert refused.value.reason == reasons.ClassKeepsGpu(class_name="ml")
        for _ in range(18):
            await control.extensions.report(ADA, ada.id, 1, 60 * MINUTE, Activity(0.0, 0.0))
            await site.clock.advance(10)
        assert site.there(ada).state is State.RUNNING
        await site.clock.advance(40)  # after the meeting
        assert control.idle.rule_of(ada.spec).after_s == 120


async def test_meetings_that_outlast_the_maximum_age_of_sessions_are_refused(control: Control) -> None:
    longest_s = 60 * MINUTE + 45
    for max_age_s in (int(longest_s) - 1, int(longest_s)):
        course = {**COURSE, "max_age": f"{max_age_s}s"}
        await control.resources.put(ROOT, course, -1, kind="Tenant", name="course")
        if max_age_s == longest_s:
            await put(control)
            break
        with pytest.raises(Unschedulable) as refused:
            await put(control)
        assert isinstance(refused.value.reason, reasons.ClassBeyondMaxAge)


async def test_an_edit_that_needs_no_room_is_not_refused_for_quota(control: Control) -> None:
    await put(control)
    small = {**COURSE, "nominal": {"running": 1}}
    await control.resources.put(ROOT, small, -1, kind="Tenant", name="course")
    assert (await put(control, title="Machine learning")).one.title == "Machine learning"
    with pytest.raises(Unschedulable):
        await put(control, seats=3)
    change = {**document(seats=3), "kind": "Class", "name": "ml"}
    await control.resources.revise("admin", [change], [])
    assert control.settings.classes["ml"].seats == 3


async def test_a_student_starts_the_session_again(site: Site, control: Control) -> None:
    Hub(site, control)
    await put(control, users=["ada"])
    with pytest.raises(Conflict):
        await control.classes.start(ADA, "ml")
    await site.clock.advance(11 * MINUTE)
    first = await control.classes.start(ADA, "ml")
    await control.workloads.stop(ADA, first.id)
    await site.clock.advance(10)
    starting = asyncio.create_task(control.classes.start(ADA, "ml"))
    await site.clock.advance(5)
    second = await starting
    assert (first.id == second.id, second.spec.owner) == (False, "ada")


async def test_a_session_starts_again_though_the_hub_still_ends_the_one_before(site: Site, control: Control) -> None:
    hub = Hub(site, control)
    await put(control, users=["ada"])
    await site.clock.advance(11 * MINUTE)
    first = await control.classes.start(ADA, "ml")
    await control.workloads.stop(ADA, first.id)
    await site.clock.advance(10)
    answers = ["ada:ml is already running", "ada:ml is pending stop"]

    async def spawn(user: str, name: str, options: Mapping[str, Any]) -> None:
        if answers:
            raise Conflict(answers.pop(0))
        await hub.spawn(user, name, options)

    site.hub.spawn = spawn
    starting = asyncio.create_task(control.classes.start(ADA, "ml"))
    await site.clock.advance(5)
    assert (await starting).id != first.id


async def test_a_session_that_lives_is_not_asked_for_again(site: Site, control: Control) -> None:
    Hub(site, control)
    await put(control, users=["ada"])
    await site.clock.advance(11 * MINUTE)
    spec = replace(sessions(site)["ada"].spec, key="another")

    async def spawn(user: str, name: str, options: Mapping[str, Any]) -> None:
        raise Conflict("ada:ml is already running")

    site.hub.spawn = spawn
    number = len(site.hub.asked)
    starting = asyncio.create_task(control.workloads.start_session_by_hub(spec))
    await site.clock.advance(5)
    with pytest.raises(Conflict):
        await starting
    assert len(site.hub.asked) == number + 1


async def test_a_session_that_ran_out_of_memory_shows_in_its_seat(site: Site, control: Control) -> None:
    Hub(site, control)
    await put(control, users=["ada"], gpus=None)
    await site.clock.advance(13 * MINUTE)
    assert states(control.classes.one(TEACHER, "ml")) == {"ada": SeatState.STARTED}
    attempt = sessions(site)["ada"].attempt
    assert attempt is not None
    site.engine.end(attempt.id, 137, OutOfMemory())
    await site.clock.advance(10)
    assert states(control.classes.one(TEACHER, "ml")) == {"ada": SeatState.OUT_OF_MEMORY}


async def test_only_the_platform_says_what_meeting_a_session_is_for(control: Control) -> None:
    asked = Submission(Kind.SESSION, name="mine", class_meeting="ml@1")
    assert spec_of(asked, ADA, control.catalogue, control.settings).class_name == ""
    assert spec_of(replace(asked, owner="ada"), SPAWNER, control.catalogue, control.settings).class_name == "ml"
