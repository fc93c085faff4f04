"""Streaming responses of server-sent events and text, until the source, the client or the server ends.

Used by the routes of events and logs. Streams send heartbeats while idle, batch frequent items, and never send faster
than the client reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from commonage import messages
from commonage.api import failures
from commonage.api.problems import problem_of
from commonage.domain.errors import CommonageError
from commonage.queues import SizedQueue

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
HEARTBEAT_S = 15.0
_HEARTBEAT = b": still here\n\n"
_BATCH_S, _MAX_BATCH_S = 0.0005, 0.05  # per open stream, and at most
_MAX_QUEUED, _MAX_QUEUED_BYTES = 1000, 256 * 1024  # per open stream
_CHUNK_BYTES = 64 * 1024
_CLOSE_TIMEOUT_S = 5.0
# no-transform and X-Accel-Buffering keep proxies from buffering the stream.
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}


def wants_stream(request: Request) -> bool:
    return EVENT_STREAM in request.headers.get("accept", "").lower()


def sse(data: str, *, event: str | None = None, id_: int | None = None) -> bytes:
    """One event. `data` must be a single line, as JSON is."""
    head = "" if event is None else f"event: {event}\n"
    identity = "" if id_ is None else f"id: {id_}\n"
    return f"{identity}{head}data: {data}\n\n".encode()


Hold = AbstractAsyncContextManager[None]
"""Counts and checks the connection while it is open; may raise CommonageError (see `control.request_limits`)."""


def _as_event(error: CommonageError) -> bytes:
    return sse(problem_of(error).model_dump_json(exclude_none=True), event="error")


def _as_line(error: CommonageError) -> bytes:
    return f"\n[commonage: the output ends here: {messages.of_error(error)}]\n".encode()


class HeldResponse(StreamingResponse):
    """A streaming response that `hold` counts while it is sent, and ends early if its token is no longer valid."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes],
        hold: Hold,
        *,
        media_type: str,
        headers: Mapping[str, str] = HEADERS,
        status: int = 200,
    ) -> None:
        super().__init__(chunks, status, headers, media_type)
        self._chunks, self._hold = chunks, hold

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
            if has_begun:
                await self._end_early(error, send)
            else:
                await failures.of_error(error)(scope, receive, send)
        finally:
            await self._release()

    async def _end_early(self, error: CommonageError, send: Send) -> None:
        """Without more, the response is shorter than announced, so that the client notices."""

    async def _release(self) -> None:
        await self._chunks.aclose()


class Stream(HeldResponse):
    """`last_words` encodes the error if the connection is ended early."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes],
        media_type: str,
        hold: Hold,
        last_words: Callable[[CommonageError], bytes],
    ) -> None:
        super().__init__(chunks, hold, media_type=media_type)
        self._last_words = last_words

    async def _end_early(self, error: CommonageError, send: Send) -> None:
        with suppress(TimeoutError):  # the client may not read
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await send({"type": "http.response.body", "body": self._last_words(error)})


class Streams:
    """All open streams, which a stopping server ends."""

    def __init__(self, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._heartbeat_s = heartbeat_s
        self._readers: set[asyncio.Task[None]] = set()
        self._held: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._readers)

    def close(self) -> None:
        """End all open streams now, and new ones at once. Their clients reconnect and resume."""
        self._closed = True
        for reader in [*self._readers, *self._held]:
            reader.cancel()

    @contextmanager
    def held(self) -> Iterator[None]:
        """`close` also cancels the task in this context, which is no stream of events."""
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
        """A response of events encoded by `sse`. A CommonageError becomes the event `error` with a problem document."""
        return Stream(self._pump(source, self._heartbeat_s), EVENT_STREAM, hold, _as_event)

    def text(self, source: AsyncGenerator[bytes], hold: Hold) -> Stream:
        return Stream(self._pump(source, None), "text/plain", hold, _as_line)

    async def _pump(self, source: AsyncGenerator[bytes], heartbeat_s: float | None) -> AsyncGenerator[bytes]:
        """The source in chunks. A separate task reads it, so that waiting can be interrupted.

        `heartbeat_s` None: plain text, which an error of the source just ends.
        """
        items = SizedQueue[bytes | None](_MAX_QUEUED, _MAX_QUEUED_BYTES, lambda item: len(item or b""))
        reader = asyncio.create_task(_read(source, items, as_event=heartbeat_s is not None))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        reader.add_done_callback(lambda _: _mark_end(items))
        if self._closed:
            reader.cancel()
        try:
            while (chunk := await _next(items, reader, heartbeat_s)) is not None:
                yield chunk
                # A busy server writes dozens of events per second to each stream. The more streams are open, the longer
                # events are batched, so that followers do not slow down submissions.
                await asyncio.sleep(min(_MAX_BATCH_S, _BATCH_S * len(self)))
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader


async def _read(source: AsyncGenerator[bytes], items: asyncio.Queue[bytes | None], *, as_event: bool) -> None:
    try:
        async with aclosing(source):
            async for item in source:
                await items.put(item)
    except CommonageError as error:
        log.info("a stream ends: %s", error)
        if as_event:
            await items.put(_as_event(error))
    except Exception:  # the response has begun, so it can only end, and the log gets the error
        log.exception("a stream broke")


def _mark_end(items: asyncio.Queue[bytes | None]) -> None:
    """Wake the reader of the queue. If the queue is full, none waits, and the reader sees that the task is done."""
    with suppress(asyncio.QueueFull):
        items.put_nowait(None)


async def _next(
    items: asyncio.Queue[bytes | None], reader: asyncio.Task[None], heartbeat_s: float | None
) -> bytes | None:
    """The queued items, up to a chunk; a heartbeat after `heartbeat_s` without an item; None at the end."""
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
