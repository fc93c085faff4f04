"""Nodes that are drained with their work in mind, and removed."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.unit.control.world import ANN, ROOT, SPAWNER, Site, job, submit

from commonage.control.access import access_of
from commonage.control.control import Control
from commonage.control.nodes.node_states import reasons_for, with_state
from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import Conflict, Forbidden, InvalidInput, NotFound, Unavailable
from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import NodeDrained, NodeLeft, NodeLost, NodeRemoved, Running, Stopping
from commonage.domain.reasons.nodes import (
    AgentNotAnswering,
    DiskNearlyFull,
    DrainedBy,
    EngineNotAnswering,
    MayRunWithoutAgent,
    NeedsRepair,
    NodeInUse,
    NotReporting,
    SiteUnreachable,
    SwarmNodeDown,
)
from commonage.domain.reasons.notes import (
    Fate,
    NodeHasFault,
    NodeMustBeEmpty,
    NodeNotResponding,
    NodeStateChanged,
    NodeUndecided,
)
from commonage.domain.reasons.waiting import Requeued
from commonage.domain.workloads import EventKind, Kind, State, Workload
from commonage.testing import factories
from commonage.testing.factories import node_key

pytestmark = pytest.mark.anyio

TWO = ("one", "two")
SILENT = EngineNotAnswering(error="Docker: refused")
FULL = DiskNearlyFull(folders=("/data",), free_mib=3, min_mib=256)
AWAY = SiteUnreachable(site="east", since=60.0)
DOWN = SwarmNodeDown(error="heartbeat failure")


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        (factories.node("one", faults=(SILENT,)), NeedsRepair()),
        (replace(factories.node("one"), state=NodeState.FAULTY, reasons=(NotReporting(),)), NotReporting()),
        (replace(factories.node("one"), reasons=(FULL,)), FULL),
        (factories.node("one", faults=(AWAY,), gone=True, awaits_admin=AWAY), AWAY),
    ],
)
def test_only_admins_read_what_a_daemon_reported(node: Node, shown: Reason) -> None:
    judged_node = with_state(node) if node.report.faults else node
    assert reasons_for(judged_node, access_of(ANN, ControlSettings())) == (shown,)
    assert reasons_for(judged_node, access_of(ROOT, ControlSettings())) == judged_node.reasons


def site_of_two(**settings: float) -> Site:
    return Site([factories.node(name, cpus_milli=8000) for name in TWO], **settings)


@pytest.fixture
def site() -> Site:
    return site_of_two()


async def started(site: Site, control: Control, ask: Submission, on: str = "one") -> Workload:
    """Runs on this machine, but for a moment only because it was told to."""
    other = next(name for name in TWO if name != on)
    await control.nodes.drain(ROOT, node_key(other), True)
    who = SPAWNER if ask.kind is Kind.SESSION else ANN
    made = await submit(control, ask, who)
    await site.clock.advance(2)
    await control.nodes.drain(ROOT, node_key(other), False)
    assert node_of(site, made) == on
    return made


def node_of(site: Site, one: Workload) -> str | None:
    attempt = site.there(one).attempt
    return attempt.allocation.node if attempt is not None and site.there(one).state is State.RUNNING else None


def session(**fields: object) -> Submission:
    return Submission(Kind.SESSION, owner="ann", **fields)  # type: ignore[arg-type]


def events_of(site: Site, one: Workload, kind: EventKind) -> list[Reason]:
    return [event.reason for event in site.store.shelf.events if (event.workload_id, event.kind) == (one.id, kind)]


async def test_a_drain_alone_disturbs_nobody(site: Site, control: Control) -> None:
    one = await started(site, control, job())
    node = await control.drains.drain(ROOT, node_key("one"))
    await site.clock.advance(60)
    assert (node.state, node.reasons, node.leave_by) == (NodeState.DRAINING, (DrainedBy(by="root"),), None)
    assert node_of(site, one) == "one"
    assert events_of(site, one, EventKind.WARNING) == []


async def test_with_requeue_jobs_go_on_elsewhere_at_once_and_who_does_not_stop_it_stays(
    site: Site, control: Control
) -> None:
    goes = await started(site, control, job("goes"))
    stays = await started(site, control, job("stays", requeue=False))
    yields = await started(site, control, job("yields", requeue=False, preemptible=True))
    talks = await started(site, control, session())
    await control.drains.drain(ROOT, node_key("one"), requeue=True)
    await site.clock.advance(15)
    assert [node_of(site, one) for one in (goes, stays, yields, talks)] == ["two", "one", "two", "one"]
    assert events_of(site, goes, EventKind.STOPPING) == [Stopping(cause=NodeDrained(node="one", by="root"))]
    assert (site.there(goes).losses, site.there(goes).retried, site.there(goes).attempts) == (0, 0, 2)


async def test_at_the_deadline_everybody_leaves_and_has_been_told(site: Site, control: Control) -> None:
    goes = await started(site, control, job("goes"))
    stops = await started(site, control, job("stops", requeue=False))
    talks = await started(site, control, session())
    by = site.clock.now() + 60
    await control.drains.drain(ROOT, node_key("one"), by=by)
    await site.clock.advance(50)
    assert [node_of(site, one) for one in (goes, stops, talks)] == ["one"] * 3
    told = [events_of(site, one, EventKind.WARNING) for one in (goes, stops, talks)]
    assert told == [
        [NodeMustBeEmpty(node="one", by="root", left_s=60, leave_by_at=by, fate=fate)]
        for fate in (Fate.REQUEUED, Fate.ENDS, Fate.SESSION_ENDS)
    ]
    await site.clock.advance(30)
    assert node_of(site, goes) == "two"
    assert [site.there(one).state for one in (stops, talks)] == [State.STOPPED] * 2
    assert site.there(stops).reason == NodeDrained(node="one", by="root", leave_by_at=by)


async def test_a_deadline_outlives_a_restart_and_reports_and_goes_with_the_drain(site: Site) -> None:
    async with site.open() as control:
        one = await started(site, control, job())
        by = site.clock.now() + 60
        await control.drains.drain(ROOT, node_key("one"), by=by)
    async with site.open() as control:
        await site.clock.advance(20)
        assert control.live_state.nodes[node_key("one")].leave_by == by
        await site.clock.advance(60)
        assert node_of(site, one) == "two"
        await control.nodes.resume(ROOT, node_key("one"))
        await site.clock.advance(10)
        assert (
            control.live_state.nodes[node_key("one")].state,
            control.live_state.nodes[node_key("one")].leave_by,
        ) == (
            NodeState.READY,
            None,
        )


async def test_draining_again_changes_the_deadline_and_tells_only_what_is_new(site: Site, control: Control) -> None:
    one = await started(site, control, job())
    by = site.clock.now() + 600
    await control.drains.drain(ROOT, node_key("one"), by=by)
    await control.drains.drain(ROOT, node_key("one"), by=by)
    assert len(events_of(site, one, EventKind.WARNING)) == 1
    assert (await control.drains.drain(ROOT, node_key("one"))).leave_by is None


async def test_a_deadline_that_is_over_and_whoever_is_no_admin_are_refused(site: Site, control: Control) -> None:
    with pytest.raises(InvalidInput, match="is over"):
        await control.drains.drain(ROOT, node_key("one"), by=site.clock.now() - 1)
    assert control.live_state.nodes[node_key("one")].state is NodeState.READY
    for forbidden in (control.drains.drain(ANN, node_key("one")), control.drains.remove(ANN, node_key("one"))):
        with pytest.raises(Forbidden):
            await forbidden
    with pytest.raises(NotFound, match="there are: one, two"):
        await control.drains.remove(ROOT, node_key("three"))


async def test_only_a_node_that_is_drained_and_empty_is_removed(site: Site, control: Control) -> None:
    one = await started(site, control, job("train"))
    with pytest.raises(Conflict) as caught:
        await control.drains.remove(ROOT, node_key("one"))
    assert caught.value.reason == NodeInUse(node="one", state="ready")
    in_use = NodeInUse(
        node="one", state="draining", reasons=(DrainedBy(by="root"),), workloads=1, names=f"train of ann ({one.id})"
    )
    await control.drains.drain(ROOT, node_key("one"))
    for force in (False, True):
        with pytest.raises(Conflict) as caught:
            await control.drains.remove(ROOT, node_key("one"), force=force)
        assert caught.value.reason == in_use
    await control.drains.drain(ROOT, node_key("one"), requeue=True)
    await site.clock.advance(15)
    await control.drains.remove(ROOT, node_key("one"))
    await site.clock.advance(10)  # it still reports, and has a moment to leave its site
    assert list(control.live_state.nodes) == [node_key("two")]
    assert [node.name for node in await site.store.nodes()] == ["two"]
    assert NodeRemoved(node="one", by="root") in [event.reason for event in site.store.shelf.events]
    await site.clock.advance(20)
    assert control.live_state.nodes[node_key("one")].state is NodeState.READY, "it has joined again"


async def test_a_lost_node_is_removed_and_what_is_still_counted_there_only_on_the_admins_word() -> None:
    site = site_of_two(sweep_every_s=1e6)  # the engine never says what became of it
    async with site.open() as control:
        one = await started(site, control, job("train"))
        site.engine.lose_node("one")
        await site.clock.advance(60)
        assert control.live_state.nodes[node_key("one")].state is NodeState.LOST
        with pytest.raises(Conflict) as caught:
            await control.drains.remove(ROOT, node_key("one"))
        assert isinstance(caught.value.reason, NodeInUse)
        assert (caught.value.reason.state, caught.value.reason.workloads) == ("lost", 1)
        await control.drains.remove(ROOT, node_key("one"), force=True)
        await site.clock.advance(2)
        assert node_of(site, one) == "two"
        assert (site.there(one).losses, site.there(one).retried) == (1, 0)
        assert node_key("one") not in control.live_state.nodes
        assert Requeued(cause=NodeRemoved(node="one", by="root")) in events_of(site, one, EventKind.QUEUED)


async def test_jobs_of_a_lost_node_run_elsewhere_and_none_twice(site: Site, control: Control) -> None:
    jobs = [await started(site, control, job(str(number))) for number in range(5)]
    site.engine.lose_node("one")
    await site.clock.advance(20)
    assert [node_of(site, one) for one in jobs] == ["two"] * 5
    living = [run for run in site.world.runs.values() if not run.gone]
    assert len(living) == 5


async def test_who_runs_on_a_node_in_trouble_reads_it() -> None:
    site = site_of_two(sweep_every_s=1e6)
    async with site.open() as control:
        one = await started(site, control, job("train"))
        talks = await started(site, control, session())

        def notes(of: Workload) -> tuple[Reason, ...]:
            details = control.queries.details(site.there(of))
            assert details.reason == Running(node="one")
            return details.notes

        assert notes(one) == ()
        site.engine.add_node(factories.node("one", faults=(SILENT,)).report)
        await site.clock.advance(10)
        fault = NodeHasFault(node="one", fate=Fate.REQUEUED)
        assert notes(one) == (fault,)
        site.engine.lose_node("one")
        await site.clock.advance(40)
        (silent,) = notes(talks)
        assert isinstance(silent, NodeNotResponding)
        assert (silent.node, silent.fate) == ("one", Fate.SESSION_ENDS)
        assert (await control.queries.explain(ANN, one.id)).reasons == (Running(node="one"), *notes(one))
        site.engine.add_node(factories.node("one").report)
        await site.clock.advance(10)
        await control.drains.drain(ROOT, node_key("one"), by=site.clock.now() + 7200)
        assert notes(one) == (NodeMustBeEmpty(node="one", by="root", left_s=7200),)


async def test_who_waits_for_an_admins_word_is_told_within_a_second_and_so_are_admins() -> None:
    why = MayRunWithoutAgent(node="one")
    site = site_of_two(sweep_every_s=1e6)
    one = factories.node("one").report
    async with site.open() as control:
        job_there, session_there = await started(site, control, job("train")), await started(site, control, session())
        site.engine.add_node(replace(one, faults=(DOWN,)))
        await site.clock.advance(5)
        site.engine.add_node(replace(one, faults=(DOWN, why), gone=True, awaits_admin=why))
        await site.clock.advance(1)
        for there in (job_there, session_there):
            (said,) = control.queries.details(site.there(there)).notes
            assert isinstance(said, NodeUndecided)
            assert (said.node, said.cause) == ("one", why)
            assert events_of(site, there, EventKind.WARNING) == [NodeUndecided(node="one", cause=why)]
        await site.clock.advance(60)
        told_admins = [one for one in events_of_nodes(site) if isinstance(one, NodeUndecided)]
        assert told_admins == [NodeUndecided(node="one", cause=why, workloads=2)]
        await control.drains.remove(ROOT, node_key("one"), force=True)
        await site.clock.advance(20)
        assert node_of(site, job_there) == "two"


async def test_what_is_lost_is_not_placed_again_on_its_node_before_that_has_reported(
    site: Site, control: Control
) -> None:
    one = await started(site, control, job())
    report = factories.node("one", cpus_milli=64_000, faults=(SILENT,)).report
    site.engine.add_node(report)  # the cluster has not heard of it yet
    assert control.live_state.nodes[node_key("one")].state is NodeState.READY
    site.engine.end(f"{one.id}-1", None, NodeLost(node="one"))
    await site.clock.advance(2)
    assert (node_of(site, one), site.there(one).attempts) == ("two", 2)
    assert control.live_state.nodes[node_key("one")].reasons == (SILENT,)


async def test_a_sound_node_on_which_something_was_lost_takes_work_at_once() -> None:
    site = Site([factories.node("one")])
    async with site.open() as control:
        one = await submit(control)
        await site.clock.advance(1)
        site.engine.end(f"{one.id}-1", None)
        await site.clock.advance(2)
        assert (node_of(site, one), site.there(one).attempts) == ("one", 2)


async def test_one_that_its_engine_gave_up_is_lost_though_it_stays_listed_and_ready_once_it_is_back() -> None:
    site = site_of_two(node_lost_after_s=3600)
    async with site.open() as control:
        one = await started(site, control, job())
        report = control.live_state.nodes[node_key("one")].report
        observed_at = control.live_state.nodes[node_key("one")].observed_at
        site.engine.give_up_node("one", DOWN)
        await site.clock.advance(20)
        lost = control.live_state.nodes[node_key("one")]
        assert (lost.state, lost.reasons, lost.observed_at) == (NodeState.LOST, (DOWN,), observed_at)
        assert node_of(site, one) == "two"
        assert NodeStateChanged(node="one", state="lost", causes=(DOWN,)) in events_of_nodes(site)
        site.engine.add_node(report)
        await site.clock.advance(10)
        assert (control.live_state.nodes[node_key("one")].state, control.live_state.nodes[node_key("one")].reasons) == (
            NodeState.READY,
            (),
        )


async def test_one_that_was_drained_before_it_was_lost_is_still_drained_by_the_same_when_it_is_back(site: Site) -> None:
    async with site.open() as control:
        report, by = control.live_state.nodes[node_key("one")].report, site.clock.now() + 3600
        await control.drains.drain(ROOT, node_key("one"), by=by)
        site.engine.give_up_node("one", DOWN)
        await site.clock.advance(10)
        assert control.live_state.nodes[node_key("one")].state is NodeState.LOST
    async with site.open() as control:
        await site.clock.advance(10)
        site.engine.add_node(report)
        await site.clock.advance(10)
        node = control.live_state.nodes[node_key("one")]
        assert (node.state, node.reasons, node.leave_by) == (NodeState.DRAINING, (DrainedBy(by="root"),), by)


async def test_one_that_was_given_up_is_removed_and_stays_away_until_it_is_back(site: Site, control: Control) -> None:
    report = control.live_state.nodes[node_key("one")].report
    site.engine.give_up_node("one", DOWN)
    await site.clock.advance(10)
    await control.drains.remove(ROOT, node_key("one"))
    await site.clock.advance(60)
    assert set(control.live_state.nodes) == {node_key("two")}
    site.engine.add_node(report)
    await site.clock.advance(10)
    assert control.live_state.nodes[node_key("one")].state is NodeState.READY


class FakeJoining:
    """Admits the configured nodes, and records the requests."""

    def __init__(self, *is_admitted: str) -> None:
        self.let_in, self.expelled, self.trouble = set(is_admitted), list[tuple[str, bool]](), ""

    async def is_admitted(self, node: str) -> bool:
        return node in self.let_in

    async def remove_node(self, node: str, *, gone: bool = False) -> Sequence[str]:
        if self.trouble:
            raise Unavailable(self.trouble)
        self.expelled.append((node, gone))
        return [f"{node}'s certificate is revoked"]


def events_of_nodes(site: Site) -> list[Reason]:
    return [event.reason for event in site.store.shelf.events if event.kind is EventKind.NODE]


async def test_a_node_that_left_is_gone_and_what_it_ended_goes_on_as_after_a_drain() -> None:
    site = site_of_two(sweep_every_s=1e6)  # the engine never says what became of it
    site.joining = joining = FakeJoining()
    async with site.open() as control:
        again, once = await started(site, control, job("a")), await started(site, control, job("b", requeue=False))
        (open_, kept) = [await started(site, control, session(name=name, requeue=name == "k")) for name in "ok"]
        site.engine.give_up_node("one", DOWN)  # it is out of the Swarm, which has not told yet
        await control.drains.left("one")
        await control.drains.finish_leave("one")
        assert list(control.live_state.nodes) == [node_key("two")]
        assert joining.expelled == [("one", True)], "others that are on their way need their tokens"
        assert NodeLeft(node="one") in events_of_nodes(site)
        await site.clock.advance(60)
        assert node_of(site, again) == "two"
        assert (site.there(again).losses, site.there(again).attempts) == (0, 2)
        assert [site.there(one).state for one in (once, open_, kept)] == [State.STOPPED] * 3
        assert {site.there(one).reason for one in (once, open_, kept)} == {NodeLeft(node="one")}
        assert {name for _, name, _ in site.hub.asked} == {"k"}, "who wished so has another session"
        assert list(control.live_state.nodes) == [node_key("two")]
        assert not any(isinstance(one, NodeUndecided) for one in events_of_nodes(site))
        await control.drains.left("one")  # said twice


async def test_what_is_placed_on_a_node_in_the_moment_in_which_it_leaves_does_not_wait_for_it() -> None:
    site = site_of_two(sweep_every_s=1e6)
    async with site.open() as control:
        await control.drains.drain(ROOT, node_key("two"))
        made = await submit(control)
        planning = asyncio.create_task(control.schedule.tick())
        leaving = asyncio.create_task(control.drains.left("one"))
        await asyncio.gather(planning, leaving)
        await control.nodes.drain(ROOT, node_key("two"), False)
        await site.clock.advance(10)
        assert (list(control.live_state.nodes), node_of(site, made)) == ([node_key("two")], "two")


async def test_one_that_may_be_let_in_still_is_removed_by_its_name_and_no_other_is(site: Site) -> None:
    site.joining = joining = FakeJoining("three")
    async with site.open() as control:
        assert await control.drains.remove(ROOT, node_key("three")) == ["three's certificate is revoked"]
        with pytest.raises(NotFound, match="there is no node 'tow'; there are: one, two"):
            await control.drains.remove(ROOT, node_key("tow"))
        assert joining.expelled == [("three", False)]
        await control.drains.drain(ROOT, node_key("two"))
        joining.trouble = "the disk of /data is full"
        with pytest.raises(Unavailable):
            await control.drains.remove(ROOT, node_key("two"))
        assert node_key("two") in control.live_state.nodes, "it is removed whole or not at all"
        joining.trouble = ""
        said = await control.drains.remove(ROOT, node_key("two"))
        assert said == ["two is removed", "two's certificate is revoked"]


async def test_one_with_a_fault_and_without_work_is_removed_at_once(site: Site, control: Control) -> None:
    one = await started(site, control, job("train"))
    report = control.live_state.nodes[node_key("one")].report
    site.engine.add_node(replace(report, faults=(AgentNotAnswering(),)))
    await site.clock.advance(10)
    assert control.live_state.nodes[node_key("one")].state is NodeState.FAULTY
    with pytest.raises(Conflict) as caught:
        await control.drains.remove(ROOT, node_key("one"))
    names = f"train of ann ({one.id})"
    assert caught.value.reason == NodeInUse(
        node="one", state="faulty", reasons=(AgentNotAnswering(),), workloads=1, names=names
    )
    assert not control.live_state.nodes[node_key("one")].drain, "what is refused changes nothing"
    await control.workloads.stop(ANN, one.id)
    await site.clock.advance(15)
    assert await control.drains.remove(ROOT, node_key("one")) == ["one is removed; it is back if it reports again"]
    assert list(control.live_state.nodes) == [node_key("two")]
