"""Live pages: one stream of server-sent events per open page, at most one update per second, only changed parts.

A page's view gives a function that draws its changing parts. The result is sent as htmx partials, each swapped into
the element of its id. Charts and logs travel on the same stream as named events, for the page's own script.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from commonage.domain.errors import CommonageError
from commonage.domain.statuses import LogLine
from commonage.domain.workloads import Event
from commonage.ports.clock import Clock
from commonage.queues import SizedQueue

MIN_S = 1.0  # between two updates
MAX_S = 5.0  # measurements change without an event
STREAM_S = 600.0  # then the browser reconnects
_LAST_WORDS_S = 5.0

# Element id -> its inner HTML.
Parts = Mapping[str, str]


def message(data: str, *, event: str | None = None, id_: str | None = None) -> str:
    lines = [f"data: {line}" for line in data.split("\n")]
    if event is not None:
        lines.insert(0, f"event: {event}")
    if id_ is not None:
        lines.insert(0, f"id: {id_}")
    return "\n".join(lines) + "\n\n"


def json_message(event: str, value: Any, *, id_: str | None = None) -> str:
    """The text in `value` must be encodable in UTF-8. It is not escaped, which would make six bytes of a letter."""
    return message(json.dumps(value, separators=(",", ":"), ensure_ascii=False), event=event, id_=id_)


def partials(parts: Parts) -> str:
    """Parts in htmx's format: each is morphed into its element, so that focus and selection stay."""
    return "".join(
        f'<hx-partial hx-target="#{name}" hx-swap="innerMorph">{html}</hx-partial>' for name, html in parts.items()
    )


# X-Accel-Buffering: an nginx in front must not buffer the stream.
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class LongResponse(StreamingResponse):
    """A response that holds its connection while it is sent (see `control.request_limits`).

    A connection above the limit is answered with `refuse`. A connection whose identity is no longer valid is
    closed: the browser reconnects, and is redirected to sign in.
    """

    def __init__(
        self,
        chunks: AsyncIterator[str] | AsyncIterator[bytes],
        hold: AbstractAsyncContextManager[None],
        refuse: Callable[[CommonageError], Response],
        *,
        media_type: str = "text/event-stream",
        headers: Mapping[str, str] = HEADERS,
        status: int = 200,
    ) -> None:
        super().__init__(chunks, status, media_type=media_type, headers=headers)
        self._hold, self._refuse = hold, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            async with self._hold:
                await super().__call__(scope, receive, noted)
        except CommonageError as error:
            if not has_begun:
                await self._refuse(error)(scope, receive, send)
                return
            with contextlib.suppress(TimeoutError):  # do not wait for a browser that does not read
                async with asyncio.timeout(_LAST_WORDS_S):
                    await send({"type": "http.response.body", "body": b""})


Draw = Callable[[], Awaitable[Parts]]


def only_changed(draw: Draw) -> Draw:
    """`draw` without the parts that are the same as in its last result."""
    before: dict[str, str] = {}

    async def fresh() -> Parts:
        parts = await draw()
        changed = {name: html for name, html in parts.items() if before.get(name) != html}
        before.update(changed)
        return changed

    return fresh


async def updates(clock: Clock, changes: AsyncIterator[Event], draw: Draw) -> AsyncIterator[str]:
    """The results of `draw`: at once, after changes, and every few seconds. An empty result is not sent."""
    changed = asyncio.Event()

    async def listen() -> None:
        try:
            async for _ in changes:
                changed.set()
        finally:
            changed.set()  # the server stops: do not wait for the next round

    listener = asyncio.create_task(listen())
    ends_at = clock.now() + STREAM_S
    try:
        while not listener.done() and clock.now() < ends_at:
            changed.clear()
            parts = await draw()
            yield message(partials(parts)) if parts else ": nothing new\n\n"
            await clock.sleep(MIN_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), MAX_S - MIN_S)
    finally:
        await end(listener)


async def merged(*sources: AsyncIterator[str]) -> AsyncIterator[str]:
    """Messages of all sources in order of arrival; ends when the first of `sources` does."""
    queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=2)  # each may be large, and the browser slow

    async def pump(source: AsyncIterator[str], *, is_first: bool) -> None:
        async for one in source:
            await queue.put(one)
        if is_first:
            await queue.put(None)

    pumps = [asyncio.create_task(pump(source, is_first=index == 0)) for index, source in enumerate(sources)]
    try:
        while (one := await queue.get()) is not None:
            yield one
    finally:
        await end(*pumps)


async def end(*tasks: asyncio.Task[None]) -> None:
    """Cancel and wait. An error of a task only ends the stream: the browser connects again."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


LONGEST_LINE = 4_000  # characters shown
_MAX_READ = 4 * LONGEST_LINE  # with escape sequences, which are not shown
_MAX_AT_ONCE, _MAX_TEXT_AT_ONCE = 5_000, 256 * 1024  # lines and characters in one message
_PAUSE_S = 0.25  # between two messages
# Escape sequences: CSI (colors, cursor), OSC (titles), and the short ones.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def shown(text: str) -> str:
    """One line as a terminal would show it: without text overwritten after a carriage return, and without colors."""
    text = text.rstrip("\r").rpartition("\r")[2]
    unread, text = len(text[_MAX_READ:]), text[:_MAX_READ]
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    more, text = len(text[LONGEST_LINE:]) + unread, text[:LONGEST_LINE]
    text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)  # last, because it is slow
    return f"{text} … ({more} more characters, see the plain log)" if more else text


async def batches(lines: AsyncIterator[LogLine], clock: Clock) -> AsyncIterator[list[LogLine]]:
    """Lines in lists, a few lists per second: a program that prints fast costs a page no more than a slow one.

    The queue bounds a list, too: none is added while a list is made.

    Raises the errors of `lines`, after the lines before them.
    """
    queue = SizedQueue[LogLine | None](_MAX_AT_ONCE, _MAX_TEXT_AT_ONCE, lambda line: len(line.text) if line else 0)

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
            while not queue.empty() and not ended:
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
        while not queue.empty():  # otherwise the end mark finds no room, and the pump does not end
            queue.get_nowait()
        await asyncio.gather(pumping, return_exceptions=True)
