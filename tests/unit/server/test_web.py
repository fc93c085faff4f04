"""WebSockets over real sockets: clients that are slow, gone, or do not keep to the protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected
from websockets.frames import Frame, Opcode

from commonage.server.processes.ports import listen
from commonage.server.web import WEBSOCKETS, Web, WebSocketProtocol

pytestmark = pytest.mark.anyio
HERE = "127.0.0.1"
MIB = 1024 * 1024
PIECE = b"x" * 65536
BODY = 3 * 1024 * 1024 + 200_000  # the last piece is large, too


class Application:
    """Accepts when `may_accept` is set; "flood" has 16 MiB sent, all else is echoed."""

    def __init__(self) -> None:
        self.may_accept = asyncio.Event()
        self.may_accept.set()
        self.ended: list[Exception | None] = []

    async def serve(self, websocket: WebSocket) -> None:
        try:
            await self.may_accept.wait()
            await websocket.accept()
            while (message := await websocket.receive())["type"] != "websocket.disconnect":
                if message.get("text") == "flood":
                    for _ in range(16 * MIB // len(PIECE)):
                        await websocket.send_bytes(PIECE)
                else:
                    await websocket.send_text(str(message.get("text")))
            self.ended.append(None)
        except (WebSocketDisconnect, OSError) as error:
            self.ended.append(error)


class Site:
    """The server, what it serves, and the connections that it has accepted."""

    def __init__(self, application: Application, port: int) -> None:
        self.application, self.port = application, port
        self.connections: list[WebSocketProtocol] = []

    async def connect(self, *headers: str, path: bytes = b"/") -> Client:
        mine = socket.socket()
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        mine.setblocking(False)
        await asyncio.get_running_loop().sock_connect(mine, (HERE, self.port))
        reader, writer = await asyncio.open_connection(sock=mine, limit=65536)
        upgrade = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        lines = ("Host: x", "Connection: Upgrade", *upgrade, *headers, "", "")
        writer.write(b"GET " + path + b" HTTP/1.1\r\n" + "\r\n".join(lines).encode())
        return Client(reader, writer)

    async def open(self) -> Client:
        client = await self.connect()
        assert b" 101 " in await client.reader.readuntil(b"\r\n\r\n")
        return client


class Client:
    """Frame by frame, and it answers no ping unless told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> None:
        self.writer.write(Frame(opcode, data, fin).serialize(mask=True))
        await self.writer.drain()

    async def receive(self) -> tuple[Opcode, bytes]:
        first, size = await self.reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await self.reader.readexactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await self.reader.readexactly(8), "big")
        return Opcode(first & 15), await self.reader.readexactly(size)

    async def next(self, opcode: Opcode) -> bytes:
        """The next frame of this kind; pings on the way are left without an answer."""
        while (monotonic_at := await self.receive())[0] is not opcode:
            assert monotonic_at[0] in (Opcode.PING, Opcode.PONG), monotonic_at
        return monotonic_at[1]


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A server that pings every 50 ms."""
    monkeypatch.setitem(WEBSOCKETS, "ws_ping_interval", 0.05)
    listening = listen(HERE, 0, "")
    application = Application()
    made = Site(application, listening.getsockname()[1])

    class Known(WebSocketProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.connections.append(self)
            super().connection_made(transport)

    monkeypatch.setitem(WEBSOCKETS, "ws", Known)
    web = Web(Starlette(routes=[WebSocketRoute("/{path:path}", application.serve)]), listening)
    web.start()
    async with asyncio.timeout(60):
        yield made
    await web.stop()


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - what changes belongs to uvicorn and has no event
            await asyncio.sleep(0.01)


async def has_ended(client: Client) -> bool:
    """Whether the server closes the connection; what it says before is of no interest."""
    async with asyncio.timeout(30):
        try:
            while await client.reader.read(65536):
                pass
        except ConnectionResetError:
            pass
    return True


async def test_a_client_that_answers_no_ping_is_kept(site: Site) -> None:
    client = await site.open()
    for _ in range(5):
        assert len(await client.next(Opcode.PING)) == 4
    await client.send(Opcode.TEXT, b"still here")
    assert await client.next(Opcode.TEXT) == b"still here"


async def test_a_client_that_takes_nothing_for_many_pings_loses_nothing(site: Site) -> None:
    client = await site.open()
    await client.send(Opcode.TEXT, b"flood")
    [protocol] = site.connections
    await until(lambda: not protocol.writable.is_set())
    buffered = protocol.transport.get_write_buffer_size()
    for _ in range(3):
        timer = protocol.ping_timer
        await until(lambda last=timer: protocol.ping_timer is not last)
    assert protocol.transport.get_write_buffer_size() == buffered  # no ping waits behind what is not taken
    taken = 0
    while taken < 16 * MIB:
        taken += len(await client.next(Opcode.BINARY))
    await client.send(Opcode.TEXT, b"done")
    assert await client.next(Opcode.TEXT) == b"done"


@pytest.mark.parametrize("first", [b"hello", b"flood"])
async def test_a_client_that_is_silent_for_too_long_is_dropped(
    site: Site, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(WebSocketProtocol, "silence_s", 0.3)
    client = await site.open()
    await client.send(Opcode.TEXT, first)
    await until(lambda: site.application.ended)  # the application is notified, although the client's end stays open
    [protocol] = site.connections
    assert protocol.disconnected
    assert protocol.transport.get_write_buffer_size() == 0
    assert await has_ended(client)


async def test_a_client_that_answers_pings_is_not_silent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebSocketProtocol, "silence_s", 10.0)
    client = await site.open()
    [protocol] = site.connections
    before = protocol._active_at
    payload = await client.next(Opcode.PING)
    await client.send(Opcode.PONG, payload)
    await until(lambda: protocol._active_at > before)


async def test_a_late_pong_does_not_shorten_the_interval(site: Site) -> None:
    await site.open()
    [protocol] = site.connections
    await until(lambda: protocol.ping_timer)
    protocol.last_ping_rtt = 1000.0
    protocol.ping_interval = 500.0
    protocol.stop_keepalive()
    protocol.schedule_ping()
    assert protocol.ping_timer is not None
    assert protocol.ping_timer.when() > asyncio.get_running_loop().time() + 400


async def test_pings_of_a_client_that_does_not_read_fill_no_memory(site: Site) -> None:
    client = await site.open()
    await client.send(Opcode.TEXT, b"ready")
    assert await client.next(Opcode.TEXT) == b"ready"
    [protocol] = site.connections
    ping = Frame(Opcode.PING, b"p" * 125).serialize(mask=True) * 500
    most = 0
    for _ in range(16 * MIB // len(ping)):
        client.writer.write(ping)
        await client.writer.drain()
        most = max(most, protocol.transport.get_write_buffer_size())
    assert most < MIB
    await until(lambda: not client.writer.transport.get_write_buffer_size())
    await client.send(Opcode.TEXT, b"the end")
    while (monotonic_at := await client.receive())[0] is not Opcode.TEXT:
        assert monotonic_at[0] in (Opcode.PING, Opcode.PONG)
    assert monotonic_at[1] == b"the end"


async def test_a_message_of_too_many_fragments_is_refused(site: Site) -> None:
    client = await site.open()
    await client.send(Opcode.TEXT, b"", fin=False)
    empty = Frame(Opcode.CONT, b"", False).serialize(mask=True)
    client.writer.write(empty * 5000)
    assert (await client.next(Opcode.CLOSE))[:2] == (1009).to_bytes(2, "big")
    assert await has_ended(client)
    assert len(site.connections[0].frames) <= 1024


async def test_fragments_are_joined(site: Site) -> None:
    client = await site.open()
    for word, opcode, fin in ((b"a", Opcode.TEXT, False), (b"b", Opcode.CONT, False), (b"c", Opcode.CONT, True)):
        await client.send(opcode, word, fin=fin)
    assert await client.next(Opcode.TEXT) == b"abc"


async def test_a_message_that_is_too_large_is_refused(site: Site) -> None:
    client = await site.open()
    await client.send(Opcode.BINARY, b"x" * (MIB + 1))
    assert (await client.next(Opcode.CLOSE))[:2] == (1009).to_bytes(2, "big")
    assert await has_ended(client)


async def test_frames_before_the_handshake_end_the_connection(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    for frame in (Frame(Opcode.PING, b"early"), Frame(Opcode.CONT, b""), Frame(Opcode.TEXT, b"\xff")):
        site.application.may_accept.clear()
        client = await site.connect()
        await until(lambda: site.connections and site.connections[-1].handshake_initiated)
        client.writer.write(frame.serialize(mask=True))
        assert await has_ended(client)
        site.application.may_accept.set()
        site.connections.clear()
    await until(lambda: len(site.application.ended) == 3)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        (("Cookie: " + "x" * 10_000,), b"/", b"431"),
        (tuple(f"X-{number}: 1" for number in range(200)), b"/", b"431"),
        ((), b"/" + b"x" * 10_000, b"414"),
        (("Content-Length: 5",), b"/", b"400"),
    ],
)
async def test_a_request_that_is_refused_is_answered_and_closed(
    site: Site, headers: tuple[str, ...], path: bytes, status: bytes
) -> None:
    client = await site.connect(*headers, path=path)
    async with asyncio.timeout(30):
        assert (await client.reader.read()).split()[1] == status


async def test_output_to_a_client_that_breaks_the_protocol_ends_quietly(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    client = await site.open()
    await client.send(Opcode.TEXT, b"flood")
    [protocol] = site.connections
    await until(lambda: not protocol.writable.is_set())
    await client.send(Opcode.CONT, b"out of place")
    await until(lambda: protocol.close_sent)
    protocol.writable.set()
    with pytest.raises(ClientDisconnected):
        await protocol.send({"type": "websocket.send", "text": "more"})
    assert await has_ended(client)
    await until(lambda: site.application.ended)
    assert isinstance(site.application.ended[0], WebSocketDisconnect)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def sizes(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with the number of bytes in the body."""
    received, more = 0, True
    while more:
        message = await receive()
        received, more = received + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"7")]})
    await send({"type": "http.response.body", "body": f"{received:07}".encode()})


async def test_large_bodies_on_one_connection_do_not_count_as_headers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        web = Web(sizes, listening)
        web.start()
        try:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            for _ in range(20):
                writer.write(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY}\r\n\r\n".encode() + bytes(BODY))
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                assert head.startswith(b"HTTP/1.1 200 "), head
                assert int(await reader.readexactly(7)) == BODY
            writer.close()
        finally:
            await web.stop()


async def test_forwarding_headers_count_only_from_the_proxies_of_the_moment() -> None:
    proxies: list[str] = []

    async def tell(scope: Any, receive: Any, send: Any) -> None:
        text = f"{scope['client'][0]} {scope['scheme']}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text})

    listening = listen("::1", 0, "")
    web = Web(tell, listening, proxies=lambda: proxies)
    web.start()
    forwarded = {"X-Forwarded-For": "203.0.113.9, 198.51.100.7", "X-Forwarded-Proto": "https"}
    url = f"http://[::1]:{listening.getsockname()[1]}/"
    async with httpx2.AsyncClient(headers=forwarded, trust_env=False) as client:
        assert (await client.get(url)).text == "::1 http"
        proxies.append("::1")
        assert (await client.get(url)).text == "198.51.100.7 https"
        proxies[:] = ["192.0.2.4"]
        assert (await client.get(url)).text == "::1 http"
    await web.stop()
