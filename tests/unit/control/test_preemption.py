"""Preemptible workloads make room for more urgent ones, get the reason, and are requeued."""

import pytest
from tests.unit.control.world import ANN, BOB, ROOT, SPAWNER, Site, job

from commonage.control.control import Control
from commonage.control.workloads.submission import Submission
from commonage.domain.principals import Principal
from commonage.domain.reasons.attempts import Preempted, Stopping
from commonage.domain.reasons.waiting import Requeued
from commonage.domain.requests import parse_gpus
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.workloads import EventKind, Kind, State, StopCause, Workload
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
DEVICE = parse_gpus("1")
QUICK = Rules(guaranteed_s=60.0)


def site_of(rules: Rules = QUICK) -> Site:
    return Site([factories.node("gpu-1", 1)], rules=rules)


async def submit(control: Control, who: Principal, **fields: object) -> Workload:
    return (await control.workloads.submit(who, job(gpu=DEVICE, **fields))).workloads[0]


async def test_the_urgent_takes_the_place_and_the_victim_is_told_and_comes_back() -> None:
    site = site_of()
    site.engine.behave(Behaviour(lasts_s=None, on_term_exit=0), name="patient")  # saves its work when it must go
    site.engine.behave(Behaviour(lasts_s=30), name="deadline")
    async with site.open() as control:
        low = await submit(control, ANN, priority="scavenger", name="patient")
        await site.clock.advance(10)
        high = await submit(control, ROOT, priority="urgent", name="deadline")
        await site.clock.advance(20)
        assert (site.there(low).state, site.there(high).state) == (State.RUNNING, State.QUEUED), "it has its minute"
        await site.clock.advance(45)
        assert site.there(high).state is State.RUNNING
        victim = site.there(low)
        assert (victim.state, victim.retried) == (State.QUEUED, 0)
        assert victim.attempt is not None
        assert victim.attempt.state is State.STOPPED
        told = [event for event in await control.queries.events(ANN) if event.workload_id == low.id]
        stopping = next(event for event in told if event.kind is EventKind.STOPPING)
        preempted = Preempted(by_owner="root", by_kind="job", is_session=False)
        assert (victim.attempt.reason, stopping.reason) == (preempted, Stopping(cause=preempted))
        requeued = [event.reason for event in told if event.kind is EventKind.QUEUED]
        assert requeued == [Requeued(cause=preempted)]
        await site.clock.advance(60)
        assert site.there(high).state is State.SUCCEEDED
        assert (site.there(low).state, site.there(low).attempts) == (State.RUNNING, 2)


async def test_what_is_not_preemptible_stays() -> None:
    site = site_of()
    async with site.open() as control:
        low = await submit(control, ANN, priority=-50)
        await site.clock.advance(10)
        high = await submit(control, ROOT, priority="urgent")
        await site.clock.advance(300)
        assert (site.there(low).state, site.there(high).state) == (State.RUNNING, State.QUEUED)


async def test_what_was_borrowed_comes_back() -> None:
    quota = Quota(Bounds(gpu_milli=1000))
    site = site_of(
        Rules((Tenant("optics", quota=quota), Tenant("course", quota=Quota(Bounds(gpu_milli=0)))), guaranteed_s=60.0)
    )
    ann, bob = Principal("ann", ANN.scopes, ("course",)), Principal("bob", BOB.scopes, ("optics",))
    async with site.open() as control:
        borrowing = await submit(control, ann, preemptible=True)
        await site.clock.advance(90)
        assert site.there(borrowing).state is State.RUNNING
        own = await submit(control, bob)
        await site.clock.advance(30)
        assert (site.there(own).state, site.there(borrowing).state) == (State.RUNNING, State.QUEUED)


async def test_a_preempted_session_ends_and_says_why() -> None:
    """Its kernels are lost, and JupyterHub would look for it at its old address: its user has to start it again."""
    site = site_of()
    async with site.open() as control:
        ask = Submission(Kind.SESSION, owner="ann", gpu=DEVICE, priority="scavenger")
        session = (await control.workloads.submit(SPAWNER, ask)).workloads[0]
        await site.clock.advance(90)
        await submit(control, ROOT, priority="urgent")
        await site.clock.advance(30)
        ended = site.there(session)
        assert ended.state is State.STOPPED
        assert ended.stop is not None
        assert (ended.stop.cause, ended.reason) == (StopCause.EVICTION, ended.stop.reason)
        assert ended.reason == Preempted(by_owner="root", by_kind="job", is_session=True)
