"""Sessions whose node went away are started again by the hub, where their users wish it."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.control.world import ANN, ROOT, SPAWNER, Site, submit

from commonage.control.control import Control
from commonage.control.loops import session_restarts as again
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import Conflict, InvalidInput, Unavailable
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import NodeDrained, NodeLost, StartFailed
from commonage.domain.reasons.notes import RestartedAs, RestartedTooOften, RestartFailed, RestartOf
from commonage.domain.requests import parse_duration, parse_gpus
from commonage.domain.workloads import MAX_LOSSES, Kind, State, Workload
from commonage.testing import factories
from commonage.testing.factories import node_key

pytestmark = pytest.mark.anyio


class Hub:
    """Its spawner submits the requested starts; `refuses` is raised `times` times first."""

    def __init__(self, site: Site, control: Control) -> None:
        self.control, self.refuses, self.times = control, Unavailable("the hub does not answer"), 0
        site.hub.spawn = self.spawn

    async def spawn(self, user: str, name: str, options: Mapping[str, Any]) -> None:
        if self.times:
            self.times -= 1
            raise self.refuses
        ask = Submission(
            Kind.SESSION,
            name=name,
            owner=user,
            key=options["key"],
            requeue=options.get("requeue") == "true",
            gpu=parse_gpus(options.get("gpus")),
            grace_s=parse_duration(options["grace"]),
            variables=(*options.get("variables", {}).items(), ("JUPYTERHUB_USER", user)),
        )
        await self.control.workloads.submit(SPAWNER, ask)


async def session(site: Site, control: Control, **fields: Any) -> Workload:
    ask = Submission(Kind.SESSION, **{"name": "main", "owner": "ann", "requeue": True, **fields})
    made = await submit(control, ask, SPAWNER)
    await site.clock.advance(2)
    assert site.there(made).state is State.RUNNING
    return made


def told(site: Site, one: Workload) -> list[Reason]:
    return [event.reason for event in site.store.shelf.events if event.workload_id == one.id]


async def lose(site: Site, one: Workload, after_s: float = 20) -> None:
    attempt = site.there(one).attempt
    assert attempt is not None
    site.engine.end(attempt.id, None, NodeLost(node=attempt.allocation.node))
    await site.clock.advance(after_s)


async def test_another_one_is_started_with_the_same_request_and_both_say_so(site: Site, control: Control) -> None:
    Hub(site, control)
    variables = (("MINE", "1"), ("JUPYTERHUB_USER", "old"), ("JUPYTERHUB_API_URL", "http://old"))
    lost = await session(
        site, control, gpu=parse_gpus("0.5"), variables=variables, secrets=(("TOKEN", "old"),), grace_s=45
    )
    await lose(site, lost)
    first, second = site.all()
    assert (first.state, second.state) == (State.LOST, State.RUNNING)
    assert (second.spec.name, second.spec.owner, second.spec.request) == (
        first.spec.name, first.spec.owner, first.spec.request,
    )  # fmt: skip
    assert second.spec.variables == (("MINE", "1"), ("JUPYTERHUB_USER", "ann"))
    assert (second.spec.secrets, second.spec.requeue, second.spec.grace_s) == ((), True, 45)
    assert told(site, lost)[-1] == RestartedAs(workload_id=second.id)
    assert RestartOf(workload_id=lost.id, cause=first.reason) in told(site, second)


async def test_who_does_not_stop_it_is_only_told(site: Site, control: Control) -> None:
    Hub(site, control)
    lost = await session(site, control, requeue=None)
    await lose(site, lost)
    assert site.states() == [State.LOST]
    assert isinstance(told(site, lost)[-1], NodeLost)


async def test_what_its_user_or_itself_ended_is_not_started_again(site: Site, control: Control) -> None:
    Hub(site, control)
    stopped, ended = await session(site, control), await session(site, control, name="other")
    await control.workloads.stop(ANN, stopped.id)
    site.engine.end(f"{ended.id}-1", 0)
    await site.clock.advance(30)
    assert sorted(site.states()) == [State.STOPPED, State.SUCCEEDED]


async def test_a_drain_with_requeue_moves_it() -> None:
    site = Site([factories.node("one"), factories.node("two")])
    async with site.open() as control:
        Hub(site, control)
        first = await session(site, control)
        at = site.there(first).attempt
        assert at is not None
        await control.drains.drain(ROOT, node_key(at.allocation.node), requeue=True)
        await site.clock.advance(30)
        second = site.all()[1]
        assert (site.there(first).state, second.state) == (State.STOPPED, State.RUNNING)
        assert site.there(first).reason == NodeDrained(node=at.allocation.node, by="root")
        assert second.attempt is not None
        assert second.attempt.allocation.node != at.allocation.node


@pytest.mark.parametrize("error", [Unavailable("the hub does not answer"), Conflict("main is pending stop")])
async def test_a_hub_that_is_busy_or_away_is_asked_again(
    site: Site, control: Control, error: Unavailable | Conflict
) -> None:
    hub = Hub(site, control)
    lost = await session(site, control)
    hub.times, hub.refuses = 5, error  # type: ignore[assignment]  # any domain error
    await lose(site, lost, 60)
    assert site.states() == [State.LOST, State.RUNNING]
    assert len(site.hub.asked) == 6


async def test_what_the_hub_refuses_is_told_once(site: Site, control: Control) -> None:
    hub = Hub(site, control)
    lost = await session(site, control)
    hub.times, hub.refuses = 99, InvalidInput("there is no environment 'old'")  # type: ignore[assignment]  # as above
    await lose(site, lost, 60)
    assert told(site, lost)[-1] == RestartFailed(cause=StartFailed(error="there is no environment 'old'"))
    assert len(site.hub.asked) == 1


async def test_a_hub_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "GIVE_UP_AFTER_S", 60.0)
    site = Site()
    async with site.open() as control:
        hub = Hub(site, control)
        lost = await session(site, control)
        hub.times = 1000
        await lose(site, lost, 80)
        assert told(site, lost)[-1] == RestartFailed(cause=StartFailed(error="the hub does not answer"))
        assert site.states() == [State.LOST]


async def test_its_user_may_be_quicker(site: Site, control: Control) -> None:
    hub = Hub(site, control)
    lost = await session(site, control)
    hub.times = 3
    await lose(site, lost, 0.6)
    mine = await session(site, control, key="mine")
    await site.clock.advance(60)
    assert [one.id for one in site.all()] == [lost.id, mine.id]


async def test_a_crash_between_the_loss_and_the_start_makes_one_and_not_two(site: Site) -> None:
    async with site.open() as control:
        hub = Hub(site, control)
        lost = await session(site, control)
        hub.times = 1000
        await lose(site, lost, 5)
    for _ in range(2):
        async with site.open() as control:
            Hub(site, control)
            await site.clock.advance(20)
            assert site.states() == [State.LOST, State.RUNNING]


async def test_it_is_not_started_again_for_ever_unless_it_ran_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "LONG_ENOUGH_S", 30.0)
    site = Site()
    async with site.open() as control:
        Hub(site, control)
        await session(site, control)
        for _ in range(MAX_LOSSES + 1):
            await lose(site, site.all()[-1], 5)
        assert site.states() == [State.LOST] * (MAX_LOSSES + 1)
        assert told(site, site.all()[-1])[-1] == RestartedTooOften(times=6)
        await session(site, control)
        for _ in range(MAX_LOSSES + 1):
            await site.clock.advance(30)
            await lose(site, site.all()[-1], 5)
        assert site.all()[-1].state is State.RUNNING
