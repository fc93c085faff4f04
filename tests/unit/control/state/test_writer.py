"""The one writer: few commits for many, the right answer to each, and a store that fails in every way it may."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from commonage.control.state.feed import Feed
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, Conflict, StaleVersion, Unavailable
from commonage.domain.lifecycle import AllocationAssigned, StartRun, StopRequested
from commonage.domain.reasons.attempts import StoppedBy
from commonage.domain.workloads import Event, State, StopRequest
from commonage.ports.store import Batch
from commonage.testing import factories
from commonage.testing.fakes.clock import FakeClock, settle
from commonage.testing.fakes.store import MemoryStore

pytestmark = pytest.mark.anyio


class Slow(MemoryStore):
    """Commits wait while `held`; `after` is raised once something was written. The workload `breaks_on` breaks it."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        self.after: CommonageError | None = None
        self.breaks_on = ""

    async def commit(self, batch: Batch) -> None:
        await self.go.wait()
        if any(one.id == self.breaks_on for one in batch.inserts):
            raise ValueError("a value that no column holds")
        await super().commit(batch)
        if self.after is not None:
            raise self.after


class Desk:
    """A writer with everything around it."""

    def __init__(self) -> None:
        self.store, self.clock, self.live_state, self.feed = Slow(), FakeClock(), LiveState(), Feed()
        self.writer = Writer(self.store, self.live_state, self.feed, self.clock)
        self.effects: list[object] = []
        self.writer.effects.follow(lambda _workload, effect: self.effects.append(effect))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    await desk.store.open()
    await desk.writer.open()
    running = asyncio.create_task(desk.writer.run())
    yield desk
    running.cancel()
    await asyncio.wait([running])


def stop() -> StopRequested:
    return StopRequested(StopRequest("ann", factories.NOW, reason=StoppedBy(by="ann")))


async def test_many_that_come_at_once_share_few_commits(desk: Desk) -> None:
    many = [factories.workload() for _ in range(500)]
    await asyncio.gather(*(desk.writer.insert([one]) for one in many))
    assert desk.store.commits <= 2
    assert [one.id for one in desk.live_state] == [one.id for one in many]
    await asyncio.gather(*(desk.writer.apply(one.id, stop()) for one in many))
    assert desk.store.commits <= 4
    assert len(desk.live_state) == 0
    assert [event.seq for event in desk.store.shelf.events] == list(range(1, 1001))


async def test_several_triggers_of_one_workload_are_one_write(desk: Desk) -> None:
    one = factories.workload()
    await desk.writer.insert([one])
    allocation = factories.allocation(f"{one.id}-1")
    allocated = desk.writer.note(one.id, AllocationAssigned(allocation))
    stopped = await desk.writer.apply(one.id, stop())
    assert stopped is not None
    assert (stopped.version, stopped.state, await allocated) == (2, State.STARTING, stopped)
    assert isinstance(desk.effects[0], StartRun)
    assert desk.store.shelf.workloads[one.id] == stopped == desk.live_state.get(one.id)


async def test_what_is_inserted_and_changed_in_one_batch_is_one_row(desk: Desk) -> None:
    one = factories.workload()
    inserted = asyncio.ensure_future(desk.writer.insert([one]))
    await asyncio.sleep(0)
    stopped = await desk.writer.apply(one.id, stop())
    await inserted
    assert stopped is not None
    assert (stopped.state, stopped.version) == (State.STOPPED, 1)
    assert desk.live_state.get(one.id) is None


async def test_what_means_nothing_writes_nothing(desk: Desk) -> None:
    one = factories.workload()
    await desk.writer.insert([one])
    commits = desk.store.commits
    assert await desk.writer.apply(one.id, AllocationAssigned(factories.allocation("other-1"))) == one
    assert await desk.writer.apply("nobody", stop()) is None
    assert desk.store.commits == commits


async def test_nothing_is_seen_before_it_is_durable(desk: Desk) -> None:
    desk.store.go.clear()
    one = factories.workload()
    with desk.feed.listen() as events:
        inserting = asyncio.ensure_future(desk.writer.insert([one]))
        await settle()
        assert desk.live_state.get(one.id) is None
        assert not inserting.done()
        desk.store.go.set()
        await inserting
        assert (await anext(events)).workload_id == one.id


async def test_one_key_taken_among_many_harms_only_its_own(desk: Desk) -> None:
    await desk.writer.insert([factories.workload(key="mine")])
    commits = desk.store.commits
    asks = [factories.workload(key="mine" if number == 25 else None) for number in range(50)]
    answers = await asyncio.gather(*(desk.writer.insert([one]) for one in asks), return_exceptions=True)
    assert [type(one) for one in answers if one is not None] == [Conflict]
    assert isinstance(answers[25], Conflict)
    assert len(desk.live_state) == 50
    assert desk.store.commits <= commits + 3


async def test_a_change_that_breaks_the_store_fails_alone(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    many = [factories.workload() for _ in range(64)]
    desk.store.breaks_on = many[3].id
    answers = await asyncio.gather(*(desk.writer.insert([one]) for one in many), return_exceptions=True)
    assert [type(one) for one in answers if one is not None] == [CommonageError]
    assert isinstance(answers[3], CommonageError)
    assert "traceback" in str(answers[3])
    assert len(desk.live_state) == 63
    assert desk.store.commits <= 6, "the others are written in halves, not one by one"
    assert [one.exc_info is not None for one in caplog.records if "cannot be written" in one.message] == [True]
    await desk.writer.insert([factories.workload()])
    assert len(desk.live_state) == 64


async def test_a_listener_that_fails_undoes_nothing(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a defect")

    told: list[str] = []
    desk.writer.written.follow(broken)
    desk.writer.written.follow(lambda workload: told.append(workload.id))
    desk.writer.effects.follow(broken)
    one = factories.workload()
    await desk.writer.insert([one])
    assert told == [one.id]
    assert await desk.writer.apply(one.id, AllocationAssigned(factories.allocation(f"{one.id}-1"))) is not None
    assert len(desk.effects) == 1
    assert {str(one.exc_info[1]) for one in caplog.records if one.exc_info} == {"a defect"}


async def test_one_key_twice_at_once_is_inserted_once(desk: Desk) -> None:
    asks = [factories.workload(key="mine"), factories.workload(), factories.workload(key="mine")]
    answers = await asyncio.gather(*(desk.writer.insert([one]) for one in asks), return_exceptions=True)
    assert [type(one) for one in answers] == [type(None), type(None), Conflict]


async def test_while_the_store_is_away_callers_are_told_and_triggers_kept(desk: Desk) -> None:
    one = factories.workload()
    await desk.writer.insert([one])
    desk.store.trouble = Unavailable("the database is away")
    stopping = desk.writer.note(one.id, stop())
    await desk.clock.advance(0.5)
    assert desk.writer.stuck
    asking = asyncio.ensure_future(desk.writer.insert([factories.workload()]))
    await desk.clock.advance(5)
    with pytest.raises(Unavailable, match="the database is away"):
        await asking
    assert not stopping.done()
    desk.store.trouble = None
    await desk.clock.advance(2)
    assert not desk.writer.stuck
    assert (await stopping).state is State.STOPPED  # type: ignore[union-attr]
    assert len(desk.store.shelf.workloads) == 1
    await desk.writer.insert([factories.workload()])


async def test_an_outage_of_hours_does_not_end_it(desk: Desk) -> None:
    one = factories.workload()
    await desk.writer.insert([one])
    desk.store.trouble = Unavailable("the database is away")
    stopping = desk.writer.note(one.id, stop())
    for _ in range(1500):
        await desk.clock.advance(1)
    desk.store.trouble = None
    await desk.clock.advance(2)
    assert stopping.done()


async def test_what_was_written_though_the_answer_was_lost_counts(desk: Desk) -> None:
    desk.store.after = Unavailable("the connection broke")
    one = factories.workload()
    inserting = asyncio.ensure_future(desk.writer.insert([one]))
    await settle()
    desk.store.after = None
    await desk.clock.advance(2)
    with pytest.raises(Unavailable):
        await inserting  # it is unknown then
    assert desk.live_state.get(one.id) == one, "but it is there, and so it runs"
    desk.store.after = Unavailable("the connection broke")
    allocated = desk.writer.note(one.id, AllocationAssigned(factories.allocation(f"{one.id}-1")))
    await settle()
    desk.store.after = None
    await desk.clock.advance(2)
    assert (await allocated).version == 2  # type: ignore[union-attr]
    assert desk.effects == [StartRun(f"{one.id}-1")]
    assert len(desk.store.shelf.events) == 2


async def test_a_second_server_on_the_database_ends_this_one_loudly(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    await desk.store.open()
    one = factories.workload()
    await desk.store.commit(Batch(inserts=[one]))
    await desk.writer.open()
    await desk.store.commit(Batch(updates=[factories.changed(one, reason=StoppedBy(by="somebody else"))]))
    running = asyncio.create_task(desk.writer.run())
    with pytest.raises(Unavailable):
        await desk.writer.apply(one.id, stop())
    with pytest.raises(StaleVersion):
        await running
    assert "another server wrote to this database" in caplog.text
    with pytest.raises(Unavailable, match="is stopping"):
        await desk.writer.insert([factories.workload()])


async def test_a_commit_that_was_begun_is_seen_through_and_the_rest_is_told() -> None:
    desk = Desk()
    await desk.store.open()
    await desk.writer.open()
    running = asyncio.create_task(desk.writer.run())
    desk.store.go.clear()
    first, second = factories.workload(), factories.workload()
    begun = asyncio.ensure_future(desk.writer.insert([first]))
    await settle()
    waits = asyncio.ensure_future(desk.writer.insert([second]))
    await settle()
    running.cancel()
    await settle()
    assert not running.done()
    desk.store.go.set()
    await asyncio.wait([running])
    await begun
    with pytest.raises(Unavailable, match="the server is stopping; try again in a moment"):
        await waits
    assert list(desk.store.shelf.workloads) == [first.id]


async def test_it_ends_also_while_the_store_is_away() -> None:
    desk = Desk()
    await desk.store.open()
    await desk.writer.open()
    running = asyncio.create_task(desk.writer.run())
    one = factories.workload()
    await desk.writer.insert([one])
    desk.store.trouble = Unavailable("the database is away")
    stopping = asyncio.ensure_future(desk.writer.apply(one.id, stop()))
    await settle()
    running.cancel()
    await asyncio.wait([running], timeout=5)
    assert running.cancelled()
    with pytest.raises(Unavailable):
        await stopping


async def test_bare_events_and_nodes_are_written(desk: Desk) -> None:
    node = factories.node()
    await desk.writer.write(events=[factories.event()], nodes=[node])
    assert desk.store.shelf.nodes == {(node.site, node.name): node}
    assert [event.seq for event in desk.store.shelf.events] == [1]


async def test_a_reader_that_falls_behind_is_cut_off() -> None:
    feed = Feed()
    with feed.listen() as events:
        feed.publish([factories.event(seq) for seq in range(1, 6001)])
        feed.publish([factories.event(7000)])
        seen = [event.seq async for event in events]
    assert seen == list(range(1, 5001))


async def test_readers_end_when_the_feed_closes() -> None:
    feed = Feed()
    with feed.listen() as events:
        feed.close()
        got: list[Event] = [event async for event in events]
    assert got == []
