"""A program's output as text for a page: batches of lines, without terminal control sequences.

The plain log, at its own link, is unchanged.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from commonage.domain.statuses import LogLine
from commonage.ports.clock import Clock

LONGEST_LINE = 4_000  # characters shown
_MAX_AT_ONCE = 5_000  # lines in one message
_PAUSE_S = 0.25  # between two messages
# Escape sequences: CSI (colors, cursor), OSC (titles), and the short ones.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def shown(text: str) -> str:
    """One line as a terminal would show it: without text overwritten after a carriage return, and without colors."""
    text = text.rstrip("\r")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    if len(text) > LONGEST_LINE:
        return f"{text[:LONGEST_LINE]} … ({len(text) - LONGEST_LINE} more characters, see the plain log)"
    return text


async def batches(lines: AsyncIterator[LogLine], clock: Clock) -> AsyncIterator[list[LogLine]]:
    """Lines in lists, a few lists per second: a program that prints fast costs a page no more than a slow one.

    Raises the errors of `lines`, after the lines before them.
    """
    queue: asyncio.Queue[LogLine | None] = asyncio.Queue(maxsize=_MAX_AT_ONCE)

    async def pump() -> None:
        try:
            async for line in lines:
                await queue.put(line)
        finally:
            await queue.put(None)

    pumping = asyncio.create_task(pump())
    try:
        while (first := await queue.get()) is not None:
            batch, ended = [first], False
            while not queue.empty() and len(batch) < _MAX_AT_ONCE and not ended:
                line = queue.get_nowait()
                ended = line is None
                if line is not None:
                    batch.append(line)
            yield batch
            if ended:
                break
            await clock.sleep(_PAUSE_S)
        await pumping
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)
