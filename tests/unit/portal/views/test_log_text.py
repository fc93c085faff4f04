"""Output as text for a page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from commonage.domain.errors import NotFound
from commonage.domain.statuses import LogLine
from commonage.portal.views.log_text import LONGEST_LINE, batches, shown
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio


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
    assert shown(raw) == text


def test_a_very_long_line_is_cut_and_says_so() -> None:
    text = shown("x" * (LONGEST_LINE + 500))
    assert len(text) < LONGEST_LINE + 100
    assert "500 more characters" in text


async def test_fast_output_comes_in_few_batches_and_complete(clock: FakeClock) -> None:
    async def lines() -> AsyncIterator[LogLine]:
        for number in range(20_000):
            yield LogLine(str(number), number)

    got: list[list[LogLine]] = []

    async def read() -> None:
        async for batch in batches(lines(), clock):
            got.append(batch)

    reading = asyncio.create_task(read())
    while not reading.done():
        await clock.advance(0.25)
    assert [line.text for batch in got for line in batch] == [str(number) for number in range(20_000)]
    assert len(got) <= 30


async def test_an_error_comes_after_what_came_before_it(clock: FakeClock) -> None:
    async def lines() -> AsyncIterator[LogLine]:
        yield LogLine("one", 4)
        raise NotFound("gone")

    got = batches(lines(), clock)
    assert [line.text for line in await anext(got)] == ["one"]
    with pytest.raises(NotFound):
        await anext(got)
