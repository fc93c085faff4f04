"""Work whose waiter is cancelled."""

import asyncio
import threading

import pytest

from commonage.cancellation import to_the_end

pytestmark = pytest.mark.anyio


async def test_cancelled_caller_waits_for_the_end_of_the_work() -> None:
    """The mounts of a container, for one: their descriptors would be closed, and reused for other folders."""
    begun, may_end, ended = asyncio.Event(), threading.Event(), threading.Event()

    def work() -> None:
        assert may_end.wait(20)
        ended.set()

    async def caller() -> None:
        begun.set()
        await to_the_end(asyncio.to_thread(work))

    calling = asyncio.create_task(caller())
    await begun.wait()
    calling.cancel()
    asyncio.get_running_loop().call_later(0.05, calling.cancel)  # as when the engine closes after a stop
    asyncio.get_running_loop().call_later(0.1, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()


async def test_cancelled_caller_waits_no_longer_than_its_limit() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    calling = asyncio.create_task(to_the_end(work(), cancelled_within_s=0.05))
    await begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(calling, 20)
    await asyncio.wait_for(cancelled.wait(), 20)
