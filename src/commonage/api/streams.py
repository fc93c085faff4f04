"""Server-sent events: a source of items becomes a response that lives until the source, the client or the server ends.

Used by the routes of events and logs. What the items are is theirs to say; this knows only how to send them: with a
sign of life while nothing happens, many at once when much does, and never faster than the client reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from commonage import messages
from commonage.api import failures
from commonage.api.problems import problem_of
from commonage.domain.errors import CommonageError

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
HEARTBEAT_S = 15.0
_HEARTBEAT = b": still here\n\n"
_GATHER_S, _GATHER_AT_MOST_S = 0.0005, 0.05  # for each stream that is open
_MOST_WAITING = 1000
_CHUNK_BYTES = 64 * 1024
_LAST_WORDS_S = 5.0
# no-transform and X-Accel-Buffering keep proxies from collecting a stream before they pass it on.
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}


def sse(data: str, *, event: str | None = None, id_: int | None = None) -> bytes:
    """One event. `data` must be a single line, as JSON is."""
    head = "" if event is None else f"event: {event}\n"
    identity = "" if id_ is None else f"id: {id_}\n"
    return f"{identity}{head}data: {data}\n\n".encode()


Hold = Callable[[], AbstractAsyncContextManager[None]]
"""The connection, counted and watched while it is open; raises errors of ours (see `control.connections`)."""


def _as_event(error: CommonageError) -> bytes:
    return sse(problem_of(error).model_dump_json(exclude_none=True), event="error")


def _as_line(error: CommonageError) -> bytes:
    return f"\n[commonage: the output ends here: {messages.of_error(error)}]\n".encode()


class Stream(StreamingResponse):
    """A response that holds its connection while it is sent. `last_words` tell why the connection is ended."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes],
        media_type: str,
        hold: Hold,
        last_words: Callable[[CommonageError], bytes],
    ) -> None:
        super().__init__(chunks, headers=HEADERS, media_type=media_type)
        self._chunks, self._hold, self._last_words = chunks, hold, last_words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; one connection too many is answered with its problem document instead."""
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            async with self._hold():
                await super().__call__(scope, receive, noted)
        except CommonageError as error:
            if not has_begun:
                await failures.of_error(error)(scope, receive, send)
                return
            with suppress(TimeoutError):  # a client that reads nothing is not waited for
                async with asyncio.timeout(_LAST_WORDS_S):
                    await send({"type": "http.response.body", "body": self._last_words(error)})
        finally:
            await self._chunks.aclose()


class Streams:
    """All streams that are open, so that a server that goes down can end them instead of waiting for them."""

    def __init__(self, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._heartbeat_s = heartbeat_s
        self._readers: set[asyncio.Task[None]] = set()
        self._held: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._readers)

    def close(self) -> None:
        """End all streams now, and those to come at once. Their clients come back and resume."""
        self._closed = True
        for reader in [*self._readers, *self._held]:
            reader.cancel()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The task that is in here ends like a stream; it is no stream of events."""
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None
        self._held.add(task)
        if self._closed:
            task.cancel()
        try:
            yield
        finally:
            self._held.discard(task)

    def events(self, source: AsyncGenerator[bytes], hold: Hold) -> Stream:
        """A response of events, made by `sse`. An error of ours becomes the event `error` with its problem document."""
        return Stream(self._pump(source, self._heartbeat_s), EVENT_STREAM, hold, _as_event)

    def text(self, source: AsyncGenerator[bytes], hold: Hold) -> Stream:
        """A response of plain text, as it comes."""
        return Stream(self._pump(source, None), "text/plain", hold, _as_line)

    async def _pump(self, source: AsyncGenerator[bytes], heartbeat_s: float | None) -> AsyncGenerator[bytes]:
        """What the source gives, in chunks. A task of its own reads it, so that waiting can be cut short.

        Without a heartbeat there are no events either: an error of the source then just ends it.
        """
        items: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        reader = asyncio.create_task(_read(source, items, tell=heartbeat_s is not None))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        reader.add_done_callback(lambda _: _mark_end(items))
        if self._closed:
            reader.cancel()
        try:
            while (chunk := await _next(items, reader, heartbeat_s)) is not None:
                yield chunk
                # A busy server writes dozens of events a second to each stream: the more there are, the longer they
                # gather, so that whoever submits is not slowed by those who look on.
                await asyncio.sleep(min(_GATHER_AT_MOST_S, _GATHER_S * len(self)))
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader


async def _read(source: AsyncGenerator[bytes], items: asyncio.Queue[bytes | None], *, tell: bool) -> None:
    """Move everything from the source to the queue."""
    try:
        async with aclosing(source):
            async for item in source:
                await items.put(item)
    except CommonageError as error:
        log.info("a stream ends: %s", error)
        if tell:
            await items.put(_as_event(error))
    except Exception:  # the answer has begun: all that is left is to end it and to say why in the log
        log.exception("a stream broke")


def _mark_end(items: asyncio.Queue[bytes | None]) -> None:
    """Wake whoever waits for more. When the queue is full nobody does, and the end is seen by the task being done."""
    with suppress(asyncio.QueueFull):
        items.put_nowait(None)


async def _next(
    items: asyncio.Queue[bytes | None], reader: asyncio.Task[None], heartbeat_s: float | None
) -> bytes | None:
    """All that waits, up to a chunk; a heartbeat when nothing came for so long; None at the end."""
    if items.empty() and reader.done():
        return None
    try:
        async with asyncio.timeout(heartbeat_s):
            item = await items.get()
    except TimeoutError:
        return _HEARTBEAT
    if item is None:
        return None
    parts, size = [item], len(item)
    while size < _CHUNK_BYTES and not items.empty():
        more = items.get_nowait()
        if more is None:
            items.put_nowait(None)
            break
        parts.append(more)
        size += len(more)
    return b"".join(parts)
