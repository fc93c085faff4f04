"""Retention: what goes, what stays, and that it goes in small batches."""

import asyncio
from dataclasses import replace

import pytest
from tests.unit.control.world import ROOT, Site, submit

from commonage.control.loops.retention import WORKLOADS_AT_ONCE, RetentionLoop
from commonage.control.settings import Retention
from commonage.control.state.feed import Feed
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import NotFound, Unavailable
from commonage.domain.tenants import Rules
from commonage.domain.workloads import Dependency, State, Workload
from commonage.ports.store import Batch, Filter
from commonage.testing import factories as make
from commonage.testing.fakes.clock import FakeClock
from commonage.testing.fakes.store import MemoryStore

pytestmark = pytest.mark.anyio
DAY_S = 86_400.0


def old_site(*workloads: Workload, days: float = 100, **settings: float) -> Site:
    site = Site(retention=Retention(**settings))
    then = site.clock.now() - days * DAY_S
    batch = Batch([replace(each, since=then) for each in workloads], events=[make.event(1, None), make.event(2, None)])
    batch.events = [replace(event, at=then) for event in batch.events]
    site.store.write(batch)
    return site


async def there(site: Site) -> set[str]:
    return {each.id for each in (await site.store.workloads(Filter(), limit=10_000)).items}


async def test_old_workloads_and_events_go_and_new_ones_stay() -> None:
    old = make.workload(State.SUCCEEDED)
    site = old_site(old)
    async with site.open() as control:
        new = await submit(control)
        await site.clock.advance(61)
        assert await there(site) == {new.id}
        assert min(event.seq for event in await site.store.events()) > 2
        with pytest.raises(NotFound):
            await control.queries.workload(ROOT, old.id)
        assert "retention" in {one.name for one in control.health()}


async def test_many_go_in_batches() -> None:
    site = old_site(*(make.workload(State.FAILED) for _ in range(2 * WORKLOADS_AT_ONCE + 1)))
    largest = 0
    write = site.store.write

    def noted(batch: Batch) -> None:
        nonlocal largest
        largest = max(largest, len(batch.expired))
        write(batch)

    site.store.write = noted  # type: ignore[method-assign]  # to see the batches
    async with site.open():
        await site.clock.advance(63)
        assert await there(site) == set()
    assert largest == WORKLOADS_AT_ONCE


async def test_a_workload_that_a_live_one_depends_on_stays() -> None:
    needed, other = make.workload(State.SUCCEEDED), make.workload(State.SUCCEEDED)
    held = make.workload(State.HELD, depends_on=(Dependency(needed.id),))
    live = replace(held, not_before=1e12)
    site = old_site(needed, other, live)
    async with site.open():
        await site.clock.advance(61)
        assert needed.id in await there(site)
        assert other.id not in await there(site)


async def test_a_workload_that_was_just_submitted_saves_its_dependency() -> None:
    needed = make.workload(State.SUCCEEDED)
    site = old_site(needed)
    async with site.open() as control:
        dependent = make.workload(State.HELD, depends_on=(Dependency(needed.id),))
        await asyncio.gather(control.writer.insert([dependent]), control.writer.write(expired=[needed.id]))
        assert await there(site) == {needed.id, dependent.id}


async def test_a_partly_live_array_stays_whole() -> None:
    members = make.array(3)
    ended = [replace(each, state=State.SUCCEEDED) for each in members[:2]]
    site = old_site(*ended, members[2])
    async with site.open():
        await site.clock.advance(61)
        assert await there(site) >= {each.id for each in ended}


async def test_fair_share_keeps_what_it_needs() -> None:
    old = make.workload(State.SUCCEEDED)
    site = old_site(old, days=30, workloads_s=3600.0)
    async with site.open():
        await site.clock.advance(61)
        assert await there(site) == {old.id}
    site = old_site(old, days=30, workloads_s=3600.0)
    site.settings = replace(site.settings, rules=Rules(half_life_s=3600.0))
    async with site.open():
        await site.clock.advance(61)
        assert await there(site) == set()


async def test_the_newest_event_stays_so_that_numbers_only_rise() -> None:
    store, clock = MemoryStore(), FakeClock()
    await store.open()
    live_state = LiveState()
    writer = Writer(store, live_state, Feed(), clock)
    loop = RetentionLoop(store, live_state, writer, clock, Retention())
    store.write(Batch(events=[replace(make.event(seq, None), at=0.0) for seq in (1, 2, 3)]))
    writing = asyncio.create_task(writer.run())
    await loop.sweep()
    assert [event.seq for event in await store.events()] == [3]
    writing.cancel()


async def test_a_store_that_is_away_stops_no_loop() -> None:
    site = old_site(make.workload(State.SUCCEEDED))
    async with site.open() as control:
        site.store.trouble = Unavailable("the database is away")
        await site.clock.advance(65)
        site.store.trouble = None
        await site.clock.advance(601)
        assert await there(site) == set()
        assert all(not one.stuck for one in control.health())
