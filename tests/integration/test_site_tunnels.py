"""TCP connections carried to programs of a site: by tunnel connections, and by streams for sites of protocol 1."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.fakes.waiting import until
from tests.integration.site_link_world import World, first_answer, site_world

from commonage.domain.errors import EngineFailure
from commonage.link.connection import encode_frame
from commonage.link.exchange import ConnectionLost, message_frame
from commonage.link.sites.messages.hello import Protocols, SiteHello
from commonage.link.sites.transport import tunnel_pool
from commonage.link.sites.transport.connection import Handlers
from commonage.link.sites.transport.packets import connect
from commonage.link.sites.transport.stream_forwarder import StreamForwarder
from commonage.link.sites.transport.streams import StreamType
from commonage.testing.fault_proxy import FaultProxy, Faults

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Port:
    port: int


TO_PORT = StreamType("to-port", Port)


async def _connect(wanted: Port) -> socket.socket:
    if not wanted.port:
        raise EngineFailure("nothing serves there", retryable=True)
    return await connect("127.0.0.1", wanted.port)


SERVES = Handlers(targets={TO_PORT: _connect})


@dataclass
class Place:
    """A site whose line the proxy spoils. `serve` starts a program there, and `client` connects to it."""

    world: World
    proxy: FaultProxy
    _forwarders: list[StreamForwarder] = field(default_factory=list)
    _servers: list[asyncio.Server] = field(default_factory=list)

    async def serve(self, program: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> int:
        """The port that leads to this program through the site's link."""
        server = await asyncio.start_server(program, "127.0.0.1", 0)
        self._servers.append(server)
        return self.forward(server.sockets[0].getsockname()[1])

    def forward(self, port: int) -> int:
        async def carry(connection: socket.socket) -> None:
            await self.world.links.connection("lab").carry(TO_PORT, Port(port), connection)

        listening = socket.create_server(("127.0.0.1", 0))
        forwarder = StreamForwarder("test", carry)
        self._forwarders.append(forwarder)
        forwarder.listen(listening)
        found: int = listening.getsockname()[1]
        return found

    async def carry(self, port: int) -> None:
        here, _there = socket.socketpair()
        with here, _there:
            await self.world.links.connection("lab").carry(TO_PORT, Port(port), here)

    async def close(self) -> None:
        for forwarder in self._forwarders:
            forwarder.close()
        for server in self._servers:
            server.close()


@pytest.fixture(params=[Protocols(), Protocols(1, 1)], ids=["tunnel connections", "streams of protocol 1"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with _place(tmp_path, request.param) as place:
        yield place


@pytest.fixture
async def newest(tmp_path: Path) -> AsyncIterator[Place]:
    async with _place(tmp_path, Protocols()) as place:
        yield place


class _place:
    def __init__(self, folder: Path, protocols: Protocols) -> None:
        self._folder, self._protocols = folder, protocols

    async def __aenter__(self) -> Place:
        self._world = site_world(self._folder)
        world = await self._world.__aenter__()
        proxy = FaultProxy(world.links.port)
        await proxy.open()
        world.dial(world.joined(port=proxy.port), SERVES, protocols=self._protocols)
        await world.connected()
        self.place = Place(world, proxy)
        return self.place

    async def __aexit__(self, *_: object) -> None:
        await self.place.close()
        await self._world.__aexit__(None, None, None)
        await self.place.proxy.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _client(port: int) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port)


async def _said_back(streams: Streams, data: bytes) -> bytes:
    streams[1].write(data)
    return await streams[0].readexactly(len(data))


async def _fetched(port: int) -> bytes:
    """All that the program sends until it ends its direction. Raises OSError."""
    reader, writer = await _client(port)
    try:
        return await reader.read()
    finally:
        writer.transport.abort()


def _sender(content: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A program whose answer ends with its connection: only that tells a reader that it is whole."""

    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(content)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    return send


async def test_bytes_pass_both_ways_at_once(place: Place) -> None:
    content = random.Random(1).randbytes(8 * MIB + 5)
    reader, writer = await _client(await place.serve(_echo))

    async def send() -> None:
        writer.write(content)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    assert await reader.read() == content
    await sending
    writer.close()


async def test_each_direction_ends_separately(place: Place) -> None:
    received = asyncio.get_running_loop().create_future()

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first")
        writer.write_eof()
        received.set_result(await reader.read())
        writer.close()

    reader, writer = await _client(await place.serve(program))
    assert await reader.read() == b"first"
    writer.write(b"second")
    writer.write_eof()
    assert await received == b"second"
    writer.close()


async def test_all_arrives_although_both_ends_are_sent_before_the_reader_reads(place: Place) -> None:
    content = random.Random(2).randbytes(32 * MIB)
    reader, writer = await _client(await place.serve(_sender(content)))
    writer.write_eof()
    await reader.readexactly(MIB)
    for _ in range(50):
        await asyncio.sleep(0.01)
    assert len(await reader.read()) == len(content) - MIB
    writer.close()


async def test_a_refusal_says_why(place: Place) -> None:
    with pytest.raises(EngineFailure, match="nothing serves there"):
        await place.carry(0)


async def test_a_program_that_resets_its_connection_resets_the_clients(place: Place) -> None:
    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.transport.abort()

    reader, writer = await _client(await place.serve(program))
    writer.write(b"x" * 10)
    with suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()


FAULTS = {
    "delay": Faults(delay_s=0.002),
    "throttle": Faults(bytes_per_s=8 * MIB),
    "corrupt": Faults(corrupt_in=1_500_000),
    "cut": Faults(cut_in=1_500_000),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
async def test_an_answer_is_whole_or_an_error(place: Place, faults: Faults) -> None:
    content = random.Random(3).randbytes(2 * MIB)
    port = await place.serve(_sender(content))
    place.proxy.faults = Faults(faults.delay_s, faults.bytes_per_s, corrupt_in=faults.corrupt_in, cut_in=faults.cut_in)
    try:
        assert await _fetched(port) == content
    except OSError:
        assert faults.cut_in or faults.corrupt_in
    else:
        assert not (faults.cut_in or faults.corrupt_in)
    place.proxy.faults = Faults()

    async def works() -> bool:
        try:
            return await _fetched(port) == content
        except OSError:
            return False

    await until(works)


async def test_a_silent_line_ends_what_it_carries_with_an_error(place: Place) -> None:
    streams = await _client(await place.serve(_echo))
    assert await _said_back(streams, b"x") == b"x"
    place.proxy.faults = Faults(silent=True)
    with pytest.raises(ConnectionError):
        await streams[0].read()
    place.proxy.faults = Faults()
    await place.world.gone()
    await place.world.connected()


async def test_a_revoked_site_loses_all_that_it_carries(place: Place) -> None:
    port = await place.serve(_echo)
    carried = [await _client(port) for _ in range(3)]
    for streams in carried:
        assert await _said_back(streams, b"x") == b"x"
    place.world.registry.revoke("lab")
    await place.world.links.check()
    for streams in carried:
        with pytest.raises(ConnectionError):
            await streams[0].read()
    assert await _fetched(port) == b""


async def test_a_slow_reader_stops_the_sender(place: Place) -> None:
    sent = 0

    async def program(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with suppress(OSError):
            while sent < 256 * MIB:
                writer.write(bytes(MIB))
                await writer.drain()
                sent += MIB

    reader, writer = await _client(await place.serve(program))
    await reader.readexactly(1)

    async def has_stopped() -> bool:
        before = sent
        await asyncio.sleep(0.5)
        return sent == before

    await until(has_stopped)
    assert sent < 128 * MIB
    writer.transport.abort()


async def test_idle_connections_take_no_threads(place: Place) -> None:
    port = await place.serve(_echo)
    carried: list[Streams] = []
    for _ in range(200):
        carried.append(await _client(port))
        assert await _said_back(carried[-1], b"x") == b"x"
    assert threading.active_count() < 100  # those of asyncio's pool for files
    for streams in carried:
        assert await _said_back(streams, b"y") == b"y"
        streams[1].close()


# --- tunnel connections only ------------------------------------------------------------------------------------------


async def test_a_spare_connection_that_has_died_is_replaced(newest: Place) -> None:
    port = await newest.serve(_echo)
    first = await _client(port)
    assert await _said_back(first, b"x") == b"x"
    link = newest.world.links.connection("lab")
    await until(lambda: newest.proxy.accepted == 2 + tunnel_pool.SPARES)
    spares = [writers for task, writers in newest.proxy._connections.items()][2:]
    for writers in spares:
        for writer in writers:
            writer.transport.abort()
    again = await _client(port)
    assert await _said_back(again, b"y") == b"y"
    assert newest.world.links.connection("lab") is link
    for streams in (first, again):
        streams[1].close()


async def test_spare_connections_end_when_nobody_uses_them(newest: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_pool, "SPARE_S", 0.5)
    streams = await _client(await newest.serve(_echo))
    assert await _said_back(streams, b"x") == b"x"
    await until(lambda: newest.proxy.accepted == 2 + tunnel_pool.SPARES)
    await until(lambda: len(newest.proxy._connections) == 2, "the link and the connection in use are left")
    assert await _said_back(streams, b"x") == b"x"
    streams[1].close()


async def test_a_site_cannot_have_more_than_its_limit(newest: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_pool, "MAX_TUNNELS", 2)
    monkeypatch.setattr(tunnel_pool, "SPARES", 0)
    port = await newest.serve(_echo)
    carried = [await _client(port) for _ in range(2)]
    for streams in carried:
        assert await _said_back(streams, b"x") == b"x"
    with pytest.raises(EngineFailure, match="the limit for one site"):
        await newest.carry(1)
    carried[0][1].close()
    await until(lambda: len(newest.proxy._connections) == 2)
    again = await _client(port)
    assert await _said_back(again, b"x") == b"x"
    for streams in (carried[1], again):
        streams[1].close()


async def test_a_connection_that_nobody_asked_for_leads_nowhere(newest: Place) -> None:
    def hello(site: str) -> bytes:
        return encode_frame(message_frame("hello", SiteHello(site, Protocols(), "1.0", 0.0, tunnel=7)))

    link = newest.world.links.connection("lab")
    other = newest.world.joined("other")
    assert (await first_answer(newest.world, other, hello("lab")))["message"] == "refused"
    await first_answer(newest.world, other, hello("other"))
    assert newest.world.links.link("other") is None
    assert newest.world.links.connection("lab") is link


async def test_the_end_of_the_link_ends_a_connection_that_is_being_opened(newest: Place) -> None:
    carrying = asyncio.create_task(newest.carry(await _deaf(newest)))
    await until(lambda: newest.proxy.accepted > 1)
    newest.world.links.disconnect("lab", "the test revokes it")
    with pytest.raises(ConnectionLost):
        await carrying


async def _deaf(place: Place) -> int:
    """The port of a program that never says anything, on the site."""
    server = await asyncio.start_server(lambda *_: asyncio.sleep(0), "127.0.0.1", 0)
    place._servers.append(server)
    port: int = server.sockets[0].getsockname()[1]
    return port
