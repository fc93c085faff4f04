"""Unexpected errors in an engine's own tasks."""

import asyncio

import pytest

from commonage.domain.iterations import Iterations
from commonage.engines.rundir import tasks
from commonage.engines.rundir.tasks import SingleFlight, Tasks
from commonage.ports.agents import OnProgress, ignore_progress

pytestmark = pytest.mark.anyio


async def test_a_loop_that_broke_starts_again_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine that misses the ends of attempts is useless, and the fault would stay unnoticed."""
    monkeypatch.setattr(tasks, "RETRY_S", 0.0)
    made, rounds, third = Tasks("test"), 0, asyncio.Event()

    async def loop(iterations: Iterations) -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 3:
            raise KeyError("Actor")
        with iterations.rest():
            third.set()
            await asyncio.Event().wait()

    made.keep("count", loop)
    await third.wait()
    assert [one.message for one in caplog.records] == ["the loop `test: count` broke, and starts again in 0 s"] * 2
    [health] = [one.health() for one in made.loops]
    assert (health.name, health.breaks, health.stuck) == ("test: count", 2, False)
    assert health.age_s is not None
    await made.cancel()
    assert rounds == 3
    made.close()


async def test_failed_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def once() -> None:
        raise KeyError("Actor")

    made = Tasks("test")
    await asyncio.wait([made.spawn(once())])
    await asyncio.sleep(0)
    assert [one.message for one in caplog.records] == ["a task of the test engine failed"]
    made.close()


class Slow:
    """Work that tells, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun, self.is_new = 0, asyncio.Event()

    async def work(self, on_progress: OnProgress) -> None:
        self.begun += 1
        on_progress("half of it", 0.5)
        await self.is_new.wait()
        on_progress("all of it", 1.0)


async def test_waiters_share_one_flight_and_its_progress() -> None:
    slow, single_flight, heard = Slow(), SingleFlight[None](), list[str]()
    waiting = [
        asyncio.create_task(single_flight.do("image", slow.work, lambda detail, _: heard.append(detail)))
        for _ in range(3)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    slow.is_new.set()
    await asyncio.gather(*waiting)
    assert (slow.begun, heard) == (1, ["half of it"] * 3 + ["all of it"] * 3)
    await single_flight.do("image", slow.work, ignore_progress)
    assert slow.begun == 2, "again, as it may have been undone since"


async def test_cancelled_waiter_leaves_flight_to_others() -> None:
    slow, single_flight = Slow(), SingleFlight[None]()
    first, second = (asyncio.create_task(single_flight.do("image", slow.work, ignore_progress)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    slow.is_new.set()
    await second
    assert (slow.begun, first.cancelled()) == (1, True)


async def test_all_waiters_get_the_error() -> None:
    async def work(on_progress: OnProgress) -> None:
        await asyncio.sleep(0)
        raise OSError("no space left")

    single_flight = SingleFlight[None]()
    ended = await asyncio.gather(
        *(single_flight.do("image", work, ignore_progress) for _ in range(2)), return_exceptions=True
    )
    assert [str(one) for one in ended] == ["no space left"] * 2


async def test_close_cancels_work_in_progress() -> None:
    slow, single_flight = Slow(), SingleFlight[None]()
    waiting = asyncio.create_task(single_flight.do("image", slow.work, ignore_progress))
    await asyncio.sleep(0)
    await single_flight.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
