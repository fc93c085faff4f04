"""Streams: batched, kept alive, never faster than they are read, ended from either side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext

import pytest

from commonage.api.streams import Streams, sse
from commonage.domain.errors import NotFound

pytestmark = pytest.mark.anyio


async def chunks(response: object) -> list[bytes]:
    return [chunk async for chunk in response.body_iterator]  # type: ignore[attr-defined]


def test_event_has_standard_format() -> None:
    assert sse('{"a":1}', event="line", id_=7) == b'id: 7\nevent: line\ndata: {"a":1}\n\n'
    assert sse("x") == b"data: x\n\n"


async def test_concurrent_items_are_sent_together() -> None:
    async def source() -> AsyncGenerator[bytes]:
        for number in range(500):
            yield b"%d;" % number

    got = await chunks(Streams().events(source(), nullcontext))
    assert b"".join(got) == b"".join(b"%d;" % number for number in range(500))
    assert len(got) < 5


async def test_a_source_is_not_read_faster_than_it_is_sent() -> None:
    given = 0

    async def source() -> AsyncGenerator[bytes]:
        nonlocal given
        while True:
            given += 1
            yield b"x" * 1000

    body = Streams().events(source(), nullcontext).body_iterator
    await anext(body)
    for _ in range(100):
        await asyncio.sleep(0)
    assert given < 2500
    await body.aclose()


async def test_a_stream_that_is_not_read_holds_few_bytes() -> None:
    item = b"x" * 100_000  # a line of control characters as JSON
    given = 0

    async def source() -> AsyncGenerator[bytes]:
        nonlocal given
        for _ in range(500):
            given += 1
            yield item

    body = Streams().events(source(), nullcontext).body_iterator
    rest = [await anext(body)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert given * len(item) < 1024 * 1024
    rest += [chunk async for chunk in body]
    assert b"".join(rest) == item * 500, "it goes on as soon as it is read"


async def test_only_event_streams_send_heartbeats() -> None:
    async def source() -> AsyncGenerator[bytes]:
        await asyncio.sleep(0.05)
        yield b"late"

    streams = Streams(heartbeat_s=0.01)
    got = await chunks(streams.events(source(), nullcontext))
    assert set(got) == {b": still here\n\n", b"late"}
    assert got[-1] == b"late"
    assert await chunks(streams.text(source(), nullcontext)) == [b"late"]


async def test_error_of_source_becomes_error_event() -> None:
    async def source() -> AsyncGenerator[bytes]:
        yield b"first\n"
        raise NotFound("it is gone", code="log-not-found")

    got = b"".join(await chunks(Streams().events(source(), nullcontext)))
    assert got.startswith(b"first\nevent: error\ndata: {")
    assert b'"code":"log-not-found"' in got
    assert await chunks(Streams().text(source(), nullcontext)) == [b"first\n"]


async def test_exception_of_source_ends_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def source() -> AsyncGenerator[bytes]:
        yield b"first\n"
        raise RuntimeError("broken inside")

    assert await chunks(Streams().events(source(), nullcontext)) == [b"first\n"]
    assert "broken inside" in caplog.text


async def test_close_ends_open_and_future_streams() -> None:
    closed = 0

    async def source() -> AsyncGenerator[bytes]:
        nonlocal closed
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed += 1

    streams = Streams()
    bodies = [streams.events(source(), nullcontext).body_iterator for _ in range(3)]
    assert [await anext(body) for body in bodies] == [b"first"] * 3
    assert len(streams) == 3
    streams.close()
    assert [await anext(body, None) for body in bodies] == [None] * 3
    assert closed == 3
    assert await chunks(streams.events(source(), nullcontext)) == []
    assert await chunks(streams.text(source(), nullcontext)) == []
    await asyncio.sleep(0)
    assert len(streams) == 0


async def test_disconnected_reader_closes_the_source() -> None:
    closed = asyncio.Event()

    async def source() -> AsyncGenerator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed.set()

    streams = Streams()
    body = streams.events(source(), nullcontext).body_iterator
    assert await anext(body) == b"first"
    await body.aclose()
    assert closed.is_set()
    assert len(streams) == 0
