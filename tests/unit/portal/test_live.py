"""Streams of a page: what is sent, how often, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from commonage.domain.workloads import Event
from commonage.portal import live
from commonage.testing import factories
from commonage.testing.fakes.clock import FakeClock, settle

pytestmark = pytest.mark.anyio


class Changes:
    """Events that come when the test says so."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.queue.get()) is not None:
            yield event

    def apply(self, times: int = 1) -> None:
        for _ in range(times):
            self.queue.put_nowait(factories.event())


def test_a_message_keeps_every_line_of_its_data() -> None:
    assert live.message("a\nb", event="e", id_="1:2") == "id: 1:2\nevent: e\ndata: a\ndata: b\n\n"
    assert live.json_message("log", ["a\nb"]) == 'event: log\ndata: ["a\\nb"]\n\n'


def test_parts_are_morphed_into_their_elements() -> None:
    assert live.partials({"head": "<p>x</p>"}) == (
        '<hx-partial hx-target="#head" hx-swap="innerMorph"><p>x</p></hx-partial>'
    )


async def test_many_changes_are_one_update_a_second(clock: FakeClock) -> None:
    changes, drawn = Changes(), 0

    async def draw() -> live.Parts:
        nonlocal drawn
        drawn += 1
        return {"n": str(drawn)}

    sent: list[str] = []

    async def read() -> None:
        async for one in live.updates(clock, aiter(changes), draw):
            sent.append(one)

    reading = asyncio.create_task(read())
    await clock.advance(0)
    assert drawn == 1
    for _ in range(11):
        changes.apply(20)
        await clock.advance(0.1)
    assert drawn == 2
    changes.queue.put_nowait(None)  # the feed is closed: the stream ends
    await clock.advance(1)
    await settle()
    assert reading.done()
    assert len(sent) == drawn


async def test_only_what_changed_is_sent() -> None:
    values = iter([{"a": "1", "b": "1"}, {"a": "1", "b": "2"}, {"a": "1", "b": "2"}])

    async def draw() -> live.Parts:
        return next(values)

    fresh = live.only_changed(draw)
    assert [await fresh(), await fresh(), await fresh()] == [{"a": "1", "b": "1"}, {"b": "2"}, {}]


async def test_a_stream_ends_in_time_so_that_the_browser_is_asked_again_who_it_is(clock: FakeClock) -> None:
    async def draw() -> live.Parts:
        clock._now += live.STREAM_S
        return {}

    changes = Changes()
    stream = live.updates(clock, aiter(changes), draw)
    assert await anext(stream) == ": nothing new\n\n"
    ending = asyncio.ensure_future(anext(stream, None))
    changes.apply()
    await clock.advance(live.MIN_S)
    assert ending.done()
    assert ending.result() is None


async def test_merged_streams_end_with_the_first_and_leave_nothing_behind() -> None:
    closed = asyncio.Event()

    async def first() -> AsyncIterator[str]:
        yield "a"
        await asyncio.sleep(0)

    async def second() -> AsyncIterator[str]:
        try:
            while True:
                yield "b"
                await asyncio.sleep(3600)
        finally:
            closed.set()

    assert sorted([one async for one in live.merged(first(), second())]) == ["a", "b"]
    await settle()
    assert closed.is_set()
