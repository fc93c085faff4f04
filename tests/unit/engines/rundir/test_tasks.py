"""What becomes of an engine's own tasks when something goes wrong that nobody expected."""

import asyncio

import pytest

from commonage.domain.iterations import Iterations
from commonage.engines.rundir import tasks
from commonage.engines.rundir.tasks import Tasks

pytestmark = pytest.mark.anyio


async def test_a_loop_that_broke_starts_again_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine that no longer hears of ends is of no use, and nobody would see it."""
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
