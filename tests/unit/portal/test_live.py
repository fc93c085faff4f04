"""Streams of a page: what is sent, how often, how they end, and program output as text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from commonage.domain.errors import NotFound
from commonage.domain.statuses import LogLine
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


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("plain", "plain"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "rest"),
        (" 10%|#   |\r 50%|##  |\r100%|####|", "100%|####|"),
        ("done\r", "done"),
        ("a\tb", "a\tb"),
        ("a\x00b\x08", "a\ufffdb\ufffd"),
        ("", ""),
    ],
)
def test_a_line_is_shown_as_a_terminal_would_leave_it(raw: str, text: str) -> None:
    assert live.shown(raw) == text


def test_a_very_long_line_is_cut_and_says_so() -> None:
    text = live.shown("x" * (live.LONGEST_LINE + 500))
    assert len(text) < live.LONGEST_LINE + 100
    assert "500 more characters" in text


async def test_fast_output_comes_in_few_batches_and_complete(clock: FakeClock) -> None:
    async def lines() -> AsyncIterator[LogLine]:
        for number in range(20_000):
            yield LogLine(str(number), number)

    got: list[list[LogLine]] = []

    async def read() -> None:
        async for batch in live.batches(lines(), clock):
            got.append(batch)

    reading = asyncio.create_task(read())
    while not reading.done():
        await clock.advance(0.25)
    assert [line.text for batch in got for line in batch] == [str(number) for number in range(20_000)]
    assert len(got) <= 30


def test_a_line_is_cut_before_its_control_characters_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = 0

    class Counting:
        def sub(self, by: str, text: str) -> str:
            nonlocal replaced
            replaced += len(text)
            return by * len(text)

    monkeypatch.setattr(live, "_CONTROLS", Counting())
    text = live.shown("\x01" * 16_384)
    assert replaced == live.LONGEST_LINE
    assert text.startswith("\ufffd" * live.LONGEST_LINE) and "12384 more characters" in text


async def test_long_lines_come_in_small_messages_and_are_not_read_ahead(clock: FakeClock) -> None:
    given = 0

    async def lines() -> AsyncIterator[LogLine]:
        nonlocal given
        for number in range(2_000):
            given += 1
            yield LogLine("\x01" * 16_384, number)

    stream = live.batches(lines(), clock)
    batch = await anext(stream)
    assert len(batch) <= 17
    message = live.json_message("log", [live.shown(line.text) for line in batch])
    assert len(message.encode()) < 256 * 1024
    await settle()
    assert given <= 35
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_merged_streams_are_read_no_faster_than_the_browser_reads() -> None:
    given = 0

    async def first() -> AsyncIterator[str]:
        nonlocal given
        while True:
            given += 1
            yield "x" * 256 * 1024

    stream = live.merged(first())
    await anext(stream)
    await settle()
    assert given <= 5
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_an_error_comes_after_what_came_before_it(clock: FakeClock) -> None:
    async def lines() -> AsyncIterator[LogLine]:
        yield LogLine("one", 4)
        raise NotFound("gone")

    got = live.batches(lines(), clock)
    assert [line.text for line in await anext(got)] == ["one"]
    with pytest.raises(NotFound):
        await anext(got)
