"""Byte streams inside a site link, with flow control for each. The same on both sides.

A side opens a stream of a type with parameters; the handler of the other side accepts or refuses it. A sender has a
credit of WINDOW_BYTES, which the receiver renews as its caller reads: so a slow reader stops its own stream only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.errors import CommonageError, EngineFailure
from commonage.link.exchange import ConnectionLost, decode_failure, encode_failure, encode_json, parse_json
from commonage.link.sites.transport.frames import (
    CHUNK_BYTES,
    MAX_OPEN_BYTES,
    FrameType,
    decode_count,
    encode,
    encode_count,
    payload_bytes,
)
from commonage.link.sites.transport.outbox import Outbox

_log = logging.getLogger(__name__)
WINDOW_BYTES = 1024 * 1024
"""Of each stream, a receiver buffers at most this much."""
TURN_BYTES = 4 * CHUNK_BYTES
"""A writer hands over this much at once: fewer switches between tasks. Other streams still have their turns between."""
MAX_INCOMING = 256
"""Streams that the other side may have open at once, by default."""
_MAX_TEXT = 4096
_CREDIT_STEP = WINDOW_BYTES // 4

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class StreamType(Generic[Q]):
    """A type of stream: the type of its parameters, and how long the other side may take to accept it."""

    name: str
    params: type[Q]
    timeout_s: float | None = 20.0


class Stream:
    """One bidirectional stream of bytes. As a context manager it is aborted at the exit, unless both sides ended.

    After an abort by either side, and after the end of the link, all methods but `abort` raise the reason: an
    EngineFailure (NotRunning, if the other side raised that), or ConnectionLost.
    """

    def __init__(self, streams: Streams, outbox: Outbox, stream_id: int, *, incoming: bool) -> None:
        self._streams, self._outbox, self._id = streams, outbox, stream_id
        self._accepts = incoming  # not accepted yet
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received: deque[bytes] = deque()
        self._consumed = 0
        self._window = WINDOW_BYTES  # what the other side may send now
        self._credit = WINDOW_BYTES  # what this side may send now
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        self._writing = asyncio.Lock()
        self._failure: CommonageError | None = None
        self._ended_here = self._ended_there = self._discards = False

    # --- for the user of the stream -------------------------------------------------------------------------------

    def accept(self) -> None:
        """Tell the opener that the stream is served. The first read, write or end does so, too."""
        if self._accepts:
            self._accepts = False
            self._control(FrameType.ACCEPT)

    async def read(self) -> bytes:
        """The next bytes; b"" once the other side ended."""
        self.accept()
        while not self._received:
            self._raise_failure()
            if self._ended_there:
                return b""
            self._readable.clear()
            await self._readable.wait()
        data = self._received.popleft()
        self._consume(len(data))
        return data

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of the data, as the other side reads it. If cancelled, a part of it may have been sent."""
        self.accept()
        left = memoryview(data)
        async with self._writing:
            while left:
                await self._wait_for_credit()
                turn = left[: min(self._credit, TURN_BYTES)]
                parts = (turn[at : at + CHUNK_BYTES] for at in range(0, len(turn), CHUNK_BYTES))
                await self._outbox.chunks((encode(FrameType.DATA, self._id, part) for part in parts), self._on_sent)
                left = left[len(turn) :]
        self._raise_failure()

    async def end(self) -> None:
        """End this side's direction: the other side reads b"" after all that was written. Idempotent."""
        self.accept()
        async with self._writing:
            self._raise_failure()
            if not self._ended_here:
                await self._outbox.chunks((encode(FrameType.END, self._id),), self._on_end_sent)

    def abort(self, reason: str) -> None:
        """End both directions at once; unread data is lost. No effect on a stream that has ended."""
        self.fail(EngineFailure(reason))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.abort("the other side closed the stream")

    # --- the rest is for the link -----------------------------------------------------------------------------------

    async def _wait_for_credit(self) -> None:
        while self._failure is None and self._credit <= 0:
            self._writable.clear()
            await self._writable.wait()
        self._raise_failure()
        if self._ended_here:
            raise EngineFailure("this side of the stream has ended: nothing can be written any more")

    def _on_sent(self, frame: bytes) -> None:
        self._credit -= payload_bytes(frame)

    def _on_end_sent(self, _frame: bytes) -> None:
        self._ended_here = True
        self._forget_if_over()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _control(self, kind: FrameType, payload: bytes = b"") -> None:
        self._outbox.control(encode(kind, self._id, payload))

    def _consume(self, count: int) -> None:
        self._consumed += count
        if self._consumed >= _CREDIT_STEP and not self._ended_there and self._failure is None:
            self._window += self._consumed
            self._control(FrameType.CREDIT, encode_count(self._consumed))
            self._consumed = 0

    def discard(self) -> None:
        """Drop what the other side still sends: this stream has no reader any more."""
        self._discards = True
        self._consume(sum(map(len, self._received)))
        self._received.clear()

    def fail(self, error: CommonageError, *, tell: bool = True) -> None:
        """End the stream with this error, which the other side receives if it is to be told."""
        if self._failure is not None or (self._ended_here and self._ended_there):
            return
        self._failure = error
        self._accepts = False
        self._received.clear()
        if tell:
            self._control(FrameType.ABORT, _failure_payload(error))
        if not self.accepted.done():
            self.accepted.set_exception(error)
            self.accepted.exception()  # marked as retrieved: there may be no waiter
        self._readable.set()
        self._writable.set()
        self._streams.forget(self._id)

    def on_accept(self) -> None:
        if not self.accepted.done():
            self.accepted.set_result(None)

    def on_data(self, data: bytes) -> None:
        """Raises Unreadable if the other side breaks the flow control."""
        if self._ended_there or len(data) > self._window:
            raise Unreadable(f"stream {self._id} sent {len(data)} bytes, and may send {self._window}")
        self._window -= len(data)
        if self._discards:
            self._consume(len(data))
            return
        if not data:
            return
        if self._received and len(self._received[-1]) + len(data) <= CHUNK_BYTES:
            self._received[-1] += data  # a million tiny frames must not become a million objects
        else:
            self._received.append(data)
        self._readable.set()

    def on_credit(self, count: int) -> None:
        """Raises Unreadable."""
        if self._credit + count > WINDOW_BYTES:
            raise Unreadable(f"stream {self._id} received a credit of {count} bytes for what was never sent")
        self._credit += count
        self._writable.set()

    def on_end(self) -> None:
        self._ended_there = True
        self._readable.set()
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        if self._ended_here and self._ended_there:
            self._streams.forget(self._id)


def _failure_payload(error: CommonageError) -> bytes:
    payload = encode_json(encode_failure(error))
    if len(payload) <= CHUNK_BYTES:
        return payload
    return encode_json(encode_failure(EngineFailure(error.message[:_MAX_TEXT], retryable=error.is_retryable)))


StreamHandler = Callable[[Any, Stream], Awaitable[None]]
"""Serves a stream with its parameters until it ends; the stream then ends in its direction, if it did not before.

An exception before the stream is accepted refuses it, a later one aborts it. The handler is cancelled when the other
side aborts the stream, and when the link ends.
"""


class Streams:
    """All streams of one link. Streams that the dialling side opens have odd numbers, the others even ones."""

    def __init__(
        self,
        name: str,
        outbox: Outbox,
        handlers: Mapping[StreamType[Any], StreamHandler],
        *,
        dialed: bool,
        max_incoming: int = MAX_INCOMING,
    ) -> None:
        self._name, self._outbox, self._max_incoming = name, outbox, max_incoming
        self._handlers = {kind.name: (kind, handler) for kind, handler in handlers.items()}
        self._open: dict[int, Stream] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._numbers = itertools.count(1 if dialed else 2, 2)
        self._last_own, self._last_theirs = 0, 0
        self._parity = 1 if dialed else 0
        self._closed: ConnectionLost | None = None

    async def open(self, kind: StreamType[Q], params: Q) -> Stream:
        """Open a stream and wait until it is accepted.

        Raises the refusal of the other side as EngineFailure or NotRunning; ConnectionLost, also after a timeout.
        """
        if self._closed is not None:
            raise self._closed
        payload = encode_json([kind.name, to_json(params)])
        if len(payload) > MAX_OPEN_BYTES:
            raise EngineFailure(f"the parameters of {kind.name} have more than {MAX_OPEN_BYTES} bytes")
        number = self._last_own = next(self._numbers)
        stream = self._open[number] = Stream(self, self._outbox, number, incoming=False)
        try:
            self._outbox.control(encode(FrameType.OPEN, number, payload))
            async with asyncio.timeout(kind.timeout_s):
                await stream.accepted
        except TimeoutError:
            late = ConnectionLost(f"{self._name} did not open {kind.name} within {kind.timeout_s or 0:.0f} s")
            stream.fail(late)
            raise late from None
        except asyncio.CancelledError:
            stream.abort("the opener does not need it any more")
            raise
        return stream

    def forget(self, number: int) -> None:
        self._open.pop(number, None)

    def close(self, reason: ConnectionLost) -> None:
        """The link has ended."""
        self._closed = reason
        for stream in list(self._open.values()):
            stream.fail(reason, tell=False)
        for task in self._serving.values():
            task.cancel()

    def on_frame(self, kind: FrameType, number: int, payload: bytes) -> None:
        """Raises Unreadable if the other side breaks the protocol: then the link has to end."""
        if kind is FrameType.OPEN:
            self._on_open(number, payload)
            return
        stream = self._open.get(number)
        if stream is None:
            last = self._last_own if number % 2 == self._parity else self._last_theirs
            if number > last:
                raise Unreadable(f"{self._name} sent a frame of stream {number}, which was never opened")
            return  # it ended meanwhile
        match kind:
            case FrameType.DATA:
                stream.on_data(payload)
            case FrameType.CREDIT:
                stream.on_credit(decode_count(payload))
            case FrameType.END:
                stream.on_end()
            case FrameType.ACCEPT:
                stream.on_accept()
            case FrameType.ABORT:
                stream.fail(decode_failure(parse_json(payload)), tell=False)
                if number in self._serving:
                    self._serving[number].cancel()

    def _on_open(self, number: int, payload: bytes) -> None:
        if number % 2 == self._parity or number <= self._last_theirs:
            raise Unreadable(f"{self._name} opened a stream with the number {number}")
        self._last_theirs = number
        match parse_json(payload):
            case [str(name), params]:
                pass
            case _:
                raise Unreadable(f"{self._name} opened a stream without a type")
        incoming = sum(1 for one in self._open if one % 2 != self._parity)
        stream = self._open[number] = Stream(self, self._outbox, number, incoming=True)
        if incoming >= self._max_incoming:
            stream.fail(EngineFailure(f"{self._max_incoming} streams are open, the limit for one link", retryable=True))
            return
        task = self._serving[number] = asyncio.create_task(self._serve(stream, name, params))
        task.add_done_callback(lambda _: self._serving.pop(number, None))

    async def _serve(self, stream: Stream, name: str, params: object) -> None:
        kind, handler = self._handlers.get(name, (None, None))
        try:
            if kind is None or handler is None:
                raise EngineFailure(f"the stream {name} is not known: the two sides have different versions")
            await handler(from_json(kind.params, params, ignore_unknown=True), stream)
            await stream.end()
            stream.discard()
        except CommonageError as error:
            stream.fail(error)
        except asyncio.CancelledError:
            stream.abort("the other side stopped serving it")
            raise
        except Exception as error:  # a bug: the opener gets an error, the log the rest
            _log.exception("stream %s of %s failed", name, self._name)
            stream.fail(EngineFailure(f"{name} failed: {error}"))
