"""Reservations: who may make them, what speaks against one, that the scheduler hears of each, and that they end."""

from typing import Any

import pytest
from tests.unit.control.world import ANN, ROOT, USER, Site, job, submit

from commonage.control.control import Control
from commonage.control.reservations import Wanted
from commonage.domain.errors import CommonageError, Conflict, Forbidden, InvalidInput, NotFound, Unschedulable
from commonage.domain.principals import Principal
from commonage.domain.reasons.notes import ReservationMade, ReservationOver
from commonage.domain.reasons.refusals import ReservationBlocked
from commonage.domain.reasons.waiting import ReservedForOthers
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import EventKind, State
from commonage.testing.factories import NOW

pytestmark = pytest.mark.anyio
RULES = Rules((Tenant("course"), Tenant("optics")))
HOUR = 3600.0


@pytest.fixture
def site() -> Site:
    return Site(rules=RULES)


def wanted(
    tenant: str = "course", start: float = HOUR, end: float = 2 * HOUR, gpus: str = "4GiB", **more: Any
) -> Wanted:
    more.setdefault("windows", [(NOW + start, NOW + end)])
    return Wanted(tenant, request=Request(500, 512, parse_gpus(gpus)), **more)


async def test_the_planner_hears_of_each_and_of_its_end(site: Site, control: Control) -> None:
    made = await control.reservations.add(ROOT, wanted(start=60, end=120, count=6, title="class"))
    assert (len(made.reservations), made.shortfalls) == (1, None)
    assert control.live_state.snapshot.rules.reservations == made.reservations
    assert control.live_state.snapshot.rules.tenants == RULES.tenants
    await control.reservations.add(ROOT, wanted(start=3 * HOUR, end=4 * HOUR))
    await site.clock.advance(121)
    assert [one.starts_at for one in control.live_state.snapshot.rules.reservations] == [NOW + 3 * HOUR]
    first, *_, last = [one.reason for one in await control.queries.events(ROOT) if one.kind is EventKind.AUDIT]
    assert isinstance(first, ReservationMade)
    assert (first.by, first.reservation.tenant, first.reservation.count) == ("root", "course", 6)
    assert (first.reservation.title, first.reservation.starts_at) == ("class", NOW + 60)
    assert last == ReservationOver(reservation=first.reservation)


async def test_they_outlive_a_restart_and_what_was_taken_away_does_not(site: Site) -> None:
    async with site.open() as control:
        kept, gone = [
            (await control.reservations.add(ROOT, wanted(start=n * HOUR, end=(n + 1) * HOUR))).reservations[0]
            for n in (1, 2)
        ]
        assert await control.reservations.remove(ROOT, gone.id) == gone
    async with site.open() as control:
        assert list(control.reservations.visible(ROOT)) == [kept]
        assert control.live_state.snapshot.rules.reservations == (kept,)


async def test_members_see_their_own_and_admins_all(control: Control) -> None:
    for tenant in ("course", "optics", "commons"):
        await control.reservations.add(ROOT, wanted(tenant))
    member = Principal("ann", USER, ("course", "staff"))
    assert {one.tenant for one in control.reservations.visible(member)} == {"course", "commons"}
    assert {one.tenant for one in control.reservations.visible(ROOT)} == {"course", "optics", "commons"}
    with pytest.raises(Forbidden):
        await control.reservations.add(ANN, wanted())
    with pytest.raises(Forbidden):
        await control.reservations.remove(ANN, "r")
    with pytest.raises(NotFound, match="no reservation 'r'"):
        await control.reservations.remove(ROOT, "r")


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (wanted("physics"), InvalidInput, "there is no tenant 'physics'; there are: commons, course, optics"),
        (wanted(start=2 * HOUR, end=HOUR), InvalidInput, "it would end (2023-11-14 23:13 UTC) before it begins"),
        (wanted(start=-HOUR), InvalidInput, "it would have begun already, 2023-11-14 21:13 UTC; now it is"),
        (wanted(end=40 * 86400), InvalidInput, "at most 31 d are allowed"),
        (wanted(start=1e8, end=1e8 + 60), InvalidInput, "more than two years from now"),
        (wanted(count=0), InvalidInput, "count must be from 1"),
        (wanted(gpus="H100:1"), Unschedulable, "GpuModelNotFound(model='H100'"),
        (wanted(count=7), Conflict, "ReservationTooLarge(count=7, "),
        (wanted(windows=[(NOW + HOUR, NOW + 2 * HOUR)] * 2, count=4), Conflict, "ReservationRefused(starts_at="),
    ],
)
async def test_what_cannot_be_reserved(control: Control, ask: Wanted, error: type[CommonageError], words: str) -> None:
    with pytest.raises(error) as raised:
        await control.reservations.add(ROOT, ask)
    assert words in str(raised.value)
    assert control.reservations.visible(ROOT) == []


async def test_those_made_before_come_first(control: Control) -> None:
    await control.reservations.add(ROOT, wanted(count=5))
    with pytest.raises(Conflict):
        await control.reservations.add(ROOT, wanted("optics", count=2))
    assert (await control.reservations.add(ROOT, wanted("optics", count=1))).shortfalls is None
    assert (await control.reservations.add(ROOT, wanted("optics", 2 * HOUR, 3 * HOUR, count=6))).shortfalls is None


async def test_what_runs_without_a_limit_is_said_and_no_refusal(site: Site, control: Control) -> None:
    await control.workloads.submit(ANN, job(gpu=parse_gpus("8GiB")))
    await site.clock.advance(1)
    made = await control.reservations.add(ROOT, wanted(count=6))
    assert isinstance(made.shortfalls, ReservationBlocked)
    assert (made.shortfalls.places, made.shortfalls.count, made.shortfalls.endless) == (4, 6, 1)
    await site.clock.advance(1)
    assert control.reservations.shortfalls(made.reservations[0]) == made.shortfalls


async def test_who_waits_is_told_of_the_reservation_and_short_work_starts_before_it(site: Site) -> None:
    student = Principal("stu", USER, ("course",))
    share = parse_gpus("4GiB")
    async with site.open() as control:
        await control.reservations.add(ROOT, wanted(start=200, end=300, count=6, title="class"))
        endless = await submit(control, job(gpu=share))
        short = await submit(control, job(gpu=share, time_limit_s=100))
        await site.clock.advance(5)
        assert (site.there(endless).state, site.there(short).state) == (State.QUEUED, State.RUNNING)
        said = control.queries.details(site.there(endless)).reason
        assert isinstance(said, ReservedForOthers)
        assert (said.tenant, said.title) == ("", ""), "names of another tenant are not shown"
        assert 190 <= (said.begins_in_s or 0) <= 200
        await site.clock.advance(210)
        asked = job(gpu=share, cpus_milli=500, memory_mib=512)
        mine = await submit(control, asked, student)
        await site.clock.advance(5)
        assert (site.there(endless).state, site.there(mine).state) == (State.QUEUED, State.RUNNING)
        said = control.queries.details(site.there(endless)).reason
        assert isinstance(said, ReservedForOthers) and said.ends_in_s is not None
        await site.clock.advance(100)
        assert site.there(endless).state is State.RUNNING
