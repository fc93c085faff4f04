"""Gangs: they start as one on different nodes, know each other, and share one fate."""

from typing import Any

import pytest
from tests.unit.control.world import ANN, FOREVER, Site, job

from commonage.control.control import Control
from commonage.domain.lifecycle import AllocationAssigned, StopRequested
from commonage.domain.reasons import attempts
from commonage.domain.reasons.waiting import Requeued
from commonage.domain.workloads import RetryPolicy, State, StopCause, StopRequest, Workload
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio


def site_of(nodes: int, *behaviours: Behaviour) -> Site:
    """Nodes on which one member of the gang fits; its members behave so, in the order of their start."""
    site = Site([factories.node(f"n{number}", cpus_milli=1000) for number in range(nodes)])
    for behaviour in behaviours:
        site.engine.behave(behaviour, times=1)
    return site


async def submit(control: Control, size: int = 3, **fields: Any) -> list[Workload]:
    made = await control.workloads.submit(ANN, job("train", gang=True, array_size=size, **fields))
    return list(made.workloads)


NEEDED = attempts.Preempted(by_owner="root", by_kind="job", is_session=False)


async def eviction(control: Control, one: Workload, site: Site) -> None:
    stop = StopRequest("the scheduler", site.clock.now(), StopCause.EVICTION, NEEDED)
    await control.writer.apply(one.id, StopRequested(stop))


def states(site: Site) -> list[State]:
    return [one.state for one in site.all() if one.spec.gang]


async def test_they_start_at_once_and_know_each_other() -> None:
    site = site_of(3)
    async with site.open() as control:
        members = await submit(control)
        await site.clock.advance(1)
        requests = [site.world.runs[f"{one.id}-1"].request for one in members]
    start_requests = [dict(one.variables) for one in requests]
    nodes = [site.there(one).attempt.allocation.node for one in members]  # type: ignore[union-attr]  # they all started
    assert sorted(nodes) == ["n0", "n1", "n2"]
    assert [order["COMMONAGE_GANG_RANK"] for order in start_requests] == ["0", "1", "2"]
    assert {order["COMMONAGE_GANG_SIZE"] for order in start_requests} == {"3"}
    assert {order["COMMONAGE_GANG_NODES"] for order in start_requests} == {",".join(nodes)}
    assert {one.gang for one in requests} == {tuple(f"{one.id}-1" for one in members)}
    assert [one.rank for one in requests] == [0, 1, 2]


async def test_none_starts_while_one_would_have_no_place() -> None:
    site = site_of(3)
    async with site.open() as control:
        first = (await control.workloads.submit(ANN, job("other"))).workloads[0]
        await site.clock.advance(1)
        members = await submit(control)
        await site.clock.advance(30)
        assert states(site) == [State.QUEUED] * 3
        await control.workloads.stop(ANN, first.id)
        await site.clock.advance(5)
        assert states(site) == [State.RUNNING] * 3
        assert {site.there(one).attempts for one in members} == {1}


async def test_one_fails_and_all_are_tried_again_together() -> None:
    site = site_of(3, FOREVER, Behaviour(lasts_s=5, exit_code=3), FOREVER)
    async with site.open() as control:
        await submit(control, retry=RetryPolicy(1, 10.0))
        await site.clock.advance(7)
        assert sorted(states(site)) == sorted([State.HELD, State.QUEUED, State.QUEUED])
        others = [one.reason for one in site.all() if one.state is State.QUEUED]
        failed = attempts.GangMemberRequeued(rank=1, cause=attempts.ExitCode(exit_code=3))
        assert others == [Requeued(cause=failed)] * 2
        await site.clock.advance(12)
        assert states(site) == [State.RUNNING] * 3
        assert {one.attempts for one in site.all()} == {2}
        assert len({one.attempt.allocation.at for one in site.all() if one.attempt}) == 1


async def test_the_retries_are_those_of_the_gang_not_of_each() -> None:
    failing = Behaviour(lasts_s=5, exit_code=3)
    site = site_of(2, failing, FOREVER, FOREVER, failing)
    async with site.open() as control:
        await submit(control, 2, retry=RetryPolicy(1, 1.0))
        await site.clock.advance(60)
    assert not [state for state in states(site) if not state.is_terminal]
    assert {one.attempts for one in site.all()} == {2}


@pytest.mark.parametrize("how", ["fails", "is stopped"])
async def test_one_ends_badly_for_good_and_the_others_end_with_it(how: str) -> None:
    site = site_of(3, FOREVER, Behaviour(lasts_s=5, exit_code=3) if how == "fails" else FOREVER, FOREVER)
    async with site.open() as control:
        members = await submit(control)
        await site.clock.advance(2)
        if how == "is stopped":
            await control.workloads.stop(ANN, members[1].id, "enough")
        await site.clock.advance(20)
    assert set(states(site)) == ({State.FAILED, State.STOPPED} if how == "fails" else {State.STOPPED})
    others = [one.reason for one in site.all() if one.stop is not None and one.stop.cause is StopCause.DEPENDENCY]
    assert len(others) == 2
    assert all(isinstance(one, attempts.GangMemberEnded | attempts.GangMemberStopping) for one in others)


async def test_one_is_evicted_and_all_make_room_and_come_back() -> None:
    site = site_of(3)
    site.engine.default = Behaviour(lasts_s=None, on_term_exit=0)  # it saves its work and ends well
    async with site.open() as control:
        members = await submit(control)
        await site.clock.advance(2)
        control.schedule.pause()
        await eviction(control, members[2], site)
        await site.clock.advance(10)
        assert states(site) == [State.QUEUED] * 3
        reasons = [site.there(one).reason for one in members]
        assert reasons[2] == Requeued(cause=NEEDED)
        assert reasons[0] == Requeued(cause=attempts.GangMemberRequeued(rank=2, cause=NEEDED))
        control.schedule.resume()
        await site.clock.advance(5)
        assert states(site) == [State.RUNNING] * 3


async def test_who_ends_well_does_not_disturb_the_others_but_none_starts_again_without_it() -> None:
    site = site_of(2, Behaviour(lasts_s=5), Behaviour(lasts_s=20, exit_code=3))
    async with site.open() as control:
        await submit(control, 2, retry=RetryPolicy(5, 1.0))
        await site.clock.advance(10)
        assert sorted(states(site)) == [State.RUNNING, State.SUCCEEDED]
        await site.clock.advance(20)
    assert sorted(states(site)) == [State.STOPPED, State.SUCCEEDED]
    assert any(isinstance(one.reason, attempts.GangMemberMissing) for one in site.all())


async def test_after_a_restart_those_that_ended_before_are_known() -> None:
    site = site_of(2, Behaviour(lasts_s=5), FOREVER)
    async with site.open() as control:
        await submit(control, 2)
        await site.clock.advance(10)
    async with site.open() as control:
        await site.clock.advance(5)
        (left,) = [one for one in site.all() if one.state is State.RUNNING]
        assert len(control.gangs.members(left)) == 2
        await eviction(control, left, site)
        await site.clock.advance(10)
    assert isinstance(site.there(left).reason, attempts.GangMemberMissing)


async def test_what_a_crash_left_started_in_part_is_sent_back_and_starts_whole() -> None:
    site = site_of(2)
    async with site.open() as control:
        control.schedule.pause()
        members = await submit(control, 2)
        half = factories.allocation(f"{members[0].id}-1", node="n0", at=site.clock.now())
        control.writer.note(members[0].id, AllocationAssigned(half))
        await site.clock.advance(2)
        assert not site.world.runs, "no order is made for a gang that is not whole"
        await site.clock.advance(40)
        control.schedule.resume()
        await site.clock.advance(5)
    assert states(site) == [State.RUNNING] * 2
