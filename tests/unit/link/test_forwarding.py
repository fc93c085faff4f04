"""Connections that are forwarded, refused, bounded and ended, over the loopback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import pytest

from commonage.link import forwarding
from commonage.link.forwarding import Forwarder, Streams, join_streams
from commonage.server.processes.ports import free_port

pytestmark = pytest.mark.anyio
HERE = "127.0.0.1"


class Target:
    """Echoes what it gets, and counts its connections."""

    def __init__(self) -> None:
        self.accepted = 0
        self.port = 0
        self.server: asyncio.Server | None = None

    async def serve(self) -> None:
        self.server = await asyncio.start_server(self._echo, HERE, 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def open(self) -> Streams:
        return await asyncio.open_connection(HERE, self.port)


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    made = Target()
    await made.serve()
    yield made
    assert made.server is not None
    made.server.close()


async def listening(forwarder: Forwarder, admitted: str = HERE) -> int:
    """Have it listen for peers of one address; its port."""
    probe = await asyncio.start_server(lambda *_: None, HERE, 0)
    port: int = probe.sockets[0].getsockname()[1]
    probe.close()
    await probe.wait_closed()
    await forwarder.listen(HERE, port, lambda peer: peer == admitted)
    return port


async def said_back(streams: Streams, data: bytes) -> bytes:
    streams[1].write(data)
    async with asyncio.timeout(10):
        try:
            return await streams[0].readexactly(len(data))
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


async def test_passes_bytes_both_ways_and_ends_with_either_side(target: Target) -> None:
    forwarder = Forwarder("test", target.open)
    port = await listening(forwarder)
    streams = await asyncio.open_connection(HERE, port)
    much = bytes(range(256)) * 4000
    assert await said_back(streams, much) == much
    streams[1].close()
    forwarder.close()


async def test_a_peer_has_a_moment_to_become_admitted(target: Target) -> None:
    forwarder, port, known = Forwarder("test", target.open, admission_s=30), free_port(), set[str]()
    await forwarder.listen(HERE, port, known.__contains__)
    early = await asyncio.open_connection(HERE, port)
    early[1].write(b"hello")
    await asyncio.sleep(0.3)
    assert target.accepted == 0
    known.add(HERE)
    assert await asyncio.wait_for(early[0].readexactly(5), 10) == b"hello"
    forwarder.close()


async def test_strangers_that_wait_do_not_take_the_places_of_others(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "MAX_UNKNOWN_PER_PEER", 2)
    forwarder, port = Forwarder("test", target.open, admission_s=30, max_total=1), free_port()
    known = {"127.0.0.9"}
    await forwarder.listen(HERE, port, known.__contains__)
    waiting = [await asyncio.open_connection(HERE, port) for _ in range(2)]
    assert await said_back(await asyncio.open_connection(HERE, port), b"x") == b"", "closed at once"
    other = await asyncio.open_connection(HERE, port, local_addr=("127.0.0.8", 0))
    admitted = await asyncio.open_connection(HERE, port, local_addr=("127.0.0.9", 0))
    assert await said_back(admitted, b"x") == b"x"
    assert not any(reader.at_eof() for reader, _ in (*waiting, other))
    forwarder.close()
    for reader, _ in (*waiting, other):
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b"", "ended with the forwarder"


async def test_a_stranger_that_is_gone_frees_its_place(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "MAX_UNKNOWN_PER_PEER", 1)
    forwarder, port, known = Forwarder("test", target.open, admission_s=30), free_port(), set[str]()
    await forwarder.listen(HERE, port, known.__contains__)
    (await asyncio.open_connection(HERE, port))[1].close()
    await asyncio.sleep(0.5)
    early = await asyncio.open_connection(HERE, port)
    known.add(HERE)
    assert await said_back(early, b"x") == b"x"
    forwarder.close()


async def test_closes_a_peer_that_is_not_admitted_and_logs_it_once(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    forwarder = Forwarder("test", target.open)
    port = await listening(forwarder, admitted="127.0.0.9")
    for _ in range(3):
        assert await said_back(await asyncio.open_connection(HERE, port), b"x") == b""
    assert target.accepted == 0
    assert len([one for one in caplog.records if "closed" in one.getMessage()]) == 1
    admitted = await asyncio.open_connection(HERE, port, local_addr=("127.0.0.9", 0))
    assert await said_back(admitted, b"x") == b"x"
    admitted[1].close()
    forwarder.close()


async def test_one_peer_cannot_take_all_connections(target: Target) -> None:
    forwarder = Forwarder("test", target.open, max_per_peer=2)
    probe = await listening(forwarder)
    await forwarder.listen(HERE, probe, lambda _: True)  # listening already: nothing changes
    first = [await asyncio.open_connection(HERE, probe) for _ in range(2)]
    for one in first:
        assert await said_back(one, b"x") == b"x"
    assert await said_back(await asyncio.open_connection(HERE, probe), b"x") == b""
    first[0][1].close()
    while await said_back(again := await asyncio.open_connection(HERE, probe), b"x") == b"":
        pass  # the end of the first is noticed in a moment
    again[1].close()
    first[1][1].close()
    forwarder.close()


async def test_unreachable_target_ends_the_connection() -> None:
    async def nobody() -> Streams:
        raise ConnectionRefusedError("nobody listens")

    forwarder = Forwarder("test", nobody)
    assert await said_back(await asyncio.open_connection(HERE, await listening(forwarder)), b"x") == b""
    forwarder.close()


async def test_an_idle_connection_ends(target: Target) -> None:
    accepted: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *streams: accepted.set_result(streams), HERE, 0)
    client = await asyncio.open_connection(HERE, server.sockets[0].getsockname()[1])
    joining = partial(join_streams, idle_s=0.05)
    await joining(await accepted, await target.open())
    assert await client[0].read() == b""
    client[1].close()
    server.close()
