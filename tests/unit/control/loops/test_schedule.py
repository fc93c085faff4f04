"""The schedule loop."""

import pytest
from tests.unit.control.world import ANN, FOREVER, Site, job, submit

from commonage.control.loops.schedule import STARTS_S, Schedule
from commonage.domain.errors import Unavailable
from commonage.domain.workloads import State
from commonage.testing import factories
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio


class BusyClock(FakeClock):
    """Every look at the clock takes a third of the time that a pass has for its starts."""

    def now(self) -> float:
        self._now += STARTS_S / 3
        return self._now


async def test_a_long_pass_ends_early_and_the_next_goes_on() -> None:
    site = Site([factories.node("cpu-1", cpus_milli=10_000)])
    site.engine.behave(FOREVER)
    async with site.open() as control:
        control.schedule.pause()
        for _ in range(10):
            await submit(control, job(cpus_milli=1000), ANN)
        busy = Schedule(control.live_state, control.writer, BusyClock(site.clock.now()))
        assert [await busy.tick() for _ in range(4)] == [4, 4, 2, 0]
        assert not control.live_state.in_state(State.QUEUED)


async def test_database_that_refuses_an_allocation_does_not_end_the_loop() -> None:
    site = Site([factories.node("cpu-1")])
    site.engine.behave(FOREVER)
    async with site.open() as control:
        control.schedule.pause()
        mine = await submit(control, job(), ANN)
        site.store.trouble = Unavailable("the database cannot be written by this user", retryable=False)
        control.schedule.resume()
        await site.clock.advance(5)
        assert site.there(mine).state is State.QUEUED
        site.store.trouble = None
        await site.clock.advance(5)
        assert site.there(mine).state is State.RUNNING
