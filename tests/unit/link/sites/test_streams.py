"""Streams over a pair of sockets: order, flow control, fairness, refusal, abort and end."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any

import pytest

from commonage.domain.errors import EngineFailure, NotFound
from commonage.link.exchange import ConnectionLost
from commonage.link.messages import Nothing, RequestType
from commonage.link.sites.transport.connection import Handlers, SiteConnection
from commonage.link.sites.transport.frames import FrameType, encode, encode_count
from commonage.link.sites.transport.streams import WINDOW_BYTES, Stream, StreamType
from commonage.ports.agents import OnProgress
from commonage.ports.execs import NotRunning
from commonage.testing.site_links import connected_pair

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Text:
    text: str


ECHO = StreamType("echo", Text)
PING = RequestType("ping", Text, Text, 5.0)


async def _echo(params: Text, stream: Stream) -> None:
    await stream.write(params.text.encode())
    while data := await stream.read():
        await stream.write(data)


async def _ping(params: Text, _: OnProgress) -> Text:
    return Text(params.text + "!")


async def _read_all(stream: Stream) -> bytes:
    received = bytearray()
    while data := await stream.read():
        received += data
    return bytes(received)


async def _no_wait() -> None:
    for _ in range(50):
        await asyncio.sleep(0.001)


async def test_bytes_come_back_in_order_and_both_directions_end() -> None:
    data = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(150_000))
    async with connected_pair(site=Handlers(streams={ECHO: _echo})) as (control, _):
        stream = await control.open(ECHO, Text("hello "))

        async def send() -> None:
            await stream.write(data)
            await stream.end()

        _, received = await asyncio.gather(send(), _read_all(stream))
        assert received == b"hello " + data
        assert await stream.read() == b""
        assert not control._streams._open


async def test_both_sides_open_streams() -> None:
    handlers = Handlers(streams={ECHO: _echo})
    async with connected_pair(handlers, handlers) as ends:
        streams = [await end.open(ECHO, Text(name)) for end, name in zip(ends, "ab", strict=True)]
        for stream in streams:
            await stream.end()
        assert [await _read_all(stream) for stream in streams] == [b"a", b"b"]


async def test_a_reader_that_does_not_read_stops_only_its_own_stream() -> None:
    reads = asyncio.Event()

    async def slow(_: Nothing, stream: Stream) -> None:
        stream.accept()
        await reads.wait()
        await _read_all(stream)

    blocked = StreamType("slow", Nothing)
    handlers = Handlers({PING: _ping}, streams={ECHO: _echo, blocked: slow})
    async with connected_pair(site=handlers) as (control, site):
        stream = await control.open(blocked, Nothing())
        writing = asyncio.create_task(stream.write(b"x" * 5 * WINDOW_BYTES))
        await _no_wait()
        assert not writing.done()
        assert await control.request(PING, Text("still there")) == Text("still there!")
        other = await control.open(ECHO, Text("me too"))
        assert await other.read() == b"me too"
        [buffered] = [one._received for one in site._streams._open.values() if one._received]
        assert sum(map(len, buffered)) == WINDOW_BYTES
        reads.set()
        await writing
        await stream.end()


async def test_chunks_of_two_streams_alternate() -> None:
    order: list[str] = []

    async def note(params: Text, stream: Stream) -> None:
        stream.accept()
        while await stream.read():
            order.append(params.text)

    noted = StreamType("note", Text)
    async with connected_pair(site=Handlers(streams={noted: note})) as (control, _):
        large, small = [await control.open(noted, Text(name)) for name in ("large", "small")]

        async def send(stream: Stream, size: int) -> None:
            await stream.write(b"x" * size)
            await stream.end()
            await stream.read()

        await asyncio.gather(send(large, 30 * WINDOW_BYTES), send(small, 1))
    assert order.index("small") < len(order) - 1


@pytest.mark.parametrize(("error", "kind"), [(NotRunning("not now"), NotRunning), (NotFound("not now"), EngineFailure)])
async def test_a_refusal_is_raised_by_open(error: Exception, kind: type[Exception]) -> None:
    async def refuse(_: Text, __: Stream) -> None:
        raise error

    async with connected_pair(site=Handlers(streams={ECHO: refuse})) as (control, site):
        with pytest.raises(kind, match="not now"):
            await control.open(ECHO, Text(""))
        assert not control._streams._open
        assert not site._streams._open


async def test_an_unknown_type_is_refused_and_the_link_stays() -> None:
    async with connected_pair(site=Handlers({PING: _ping})) as (control, _):
        with pytest.raises(EngineFailure, match="versions"):
            await control.open(ECHO, Text(""))
        assert await control.request(PING, Text("a")) == Text("a!")


async def test_an_error_after_the_start_aborts_the_stream_with_its_message() -> None:
    async def fail(_: Text, stream: Stream) -> None:
        await stream.write(b"so far")
        await stream.read()
        raise EngineFailure("the disk is full", retryable=True)

    async with connected_pair(site=Handlers(streams={ECHO: fail})) as (control, _):
        stream = await control.open(ECHO, Text(""))
        assert await stream.read() == b"so far"
        await stream.write(b"go on")
        with pytest.raises(EngineFailure, match="disk is full") as caught:
            await stream.read()
        assert caught.value.is_retryable
        with pytest.raises(EngineFailure, match="disk is full"):
            await stream.write(b"more")


async def test_an_abort_by_the_opener_cancels_the_handler() -> None:
    ended = asyncio.Event()

    async def wait(_: Text, stream: Stream) -> None:
        stream.accept()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with connected_pair(site=Handlers(streams={ECHO: wait})) as (control, site):
        async with await control.open(ECHO, Text("")):
            pass
        async with asyncio.timeout(5):
            await ended.wait()
        await _no_wait()
        assert not site._streams._open
        assert not control._streams._open


async def test_a_handler_that_returns_ends_the_stream_and_drops_what_still_arrives() -> None:
    async def head(_: Text, stream: Stream) -> None:
        await stream.write(b"head")

    async with connected_pair(site=Handlers(streams={ECHO: head})) as (control, _):
        stream = await control.open(ECHO, Text(""))
        await stream.write(b"x" * 3 * WINDOW_BYTES)
        assert await _read_all(stream) == b"head"
        await stream.end()
        assert not control._streams._open


async def test_the_end_of_the_link_fails_streams_and_requests_with_its_reason() -> None:
    async with connected_pair(site=Handlers(streams={ECHO: _echo})) as (control, site):
        stream = await control.open(ECHO, Text("x"))
        await stream.read()
        site.close("maintenance")
        with pytest.raises(ConnectionLost):
            await stream.read()
        with pytest.raises(ConnectionLost):
            await control.open(ECHO, Text(""))
        with pytest.raises(ConnectionLost):
            await control.request(PING, Text(""))


async def test_more_streams_than_allowed_are_refused_and_the_link_stays() -> None:
    async with connected_pair(site=Handlers(streams={ECHO: _echo}, max_incoming=3)) as (control, _):
        streams = [await control.open(ECHO, Text("x")) for _ in range(3)]
        with pytest.raises(EngineFailure, match="limit"):
            await control.open(ECHO, Text("x"))
        streams[0].abort("room for another")
        await control.open(ECHO, Text("x"))


async def test_a_cancelled_write_keeps_the_flow_control_right() -> None:
    received = bytearray()
    reads = asyncio.Event()

    async def collect(_: Text, stream: Stream) -> None:
        stream.accept()
        await reads.wait()
        while data := await stream.read():
            received.extend(data)

    async with connected_pair(site=Handlers(streams={ECHO: collect})) as (control, _):
        stream = await control.open(ECHO, Text(""))
        for _ in range(40):
            writing = asyncio.create_task(stream.write(b"x" * WINDOW_BYTES))
            for _ in range(3):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        reads.set()
        await stream.write(b"the end")
        await stream.end()
        assert await stream.read() == b""
        assert received.endswith(b"xthe end")
        assert not control.is_closed


BAD_FRAMES = {
    "more data than its credit": [encode(FrameType.DATA, 1, b"x" * 65536)] * 17,
    "credit for nothing": [encode(FrameType.CREDIT, 1, encode_count(1))],
    "data after the end": [encode(FrameType.END, 1), encode(FrameType.DATA, 1, b"x")],
    "a stream never opened": [encode(FrameType.DATA, 99, b"x")],
    "a stream of the other side": [encode(FrameType.OPEN, 2, b'["echo",{"text":""}]')],
    "a stream opened twice": [encode(FrameType.OPEN, 1, b'["echo",{"text":""}]')],
    "no JSON": [encode(FrameType.CONTROL, 0, b"{")],
}


@pytest.mark.parametrize("frames", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
async def test_a_side_that_breaks_the_protocol_loses_the_link(frames: list[bytes]) -> None:
    async def never(_: Any, stream: Stream) -> None:
        stream.accept()
        await asyncio.Event().wait()

    async with connected_pair(control=Handlers(streams={ECHO: never})) as (control, site):
        stream = await site.open(ECHO, Text(""))
        for frame in frames:
            site._writer.write(frame)
        with pytest.raises(ConnectionLost):
            await stream.read()
        assert control.is_closed


async def test_messages_with_new_fields_are_understood_and_unreadable_ones_dropped() -> None:
    received: list[object] = []
    handlers = Handlers(messages={"text": (Text, received.append)})

    async with connected_pair(control=handlers) as (control, site):
        for body in ({"text": "a", "color": "new"}, {"wrong": 1}, {"text": "b"}):
            site._write({"message": "text", "body": body})
        await _no_wait()
        assert received == [Text("a"), Text("b")]
        assert not control.is_closed


async def test_the_clock_offset_is_measured() -> None:
    async with connected_pair() as (control, site):
        await _no_wait()
        assert abs(control.clock_offset_s) < 2
        site_ahead: SiteConnection = site
        assert site_ahead.protocol == control.protocol
