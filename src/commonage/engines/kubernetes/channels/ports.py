"""Ports of Pods at addresses of this machine, for a control plane without a route to Pods. The engine uses it.

Each attempt has the port of its program at a loopback address of its own (127.128.0.0/10). The address follows from the
attempt's id, so that it is the same after a restart. It refuses connections until the program listens.

Each connection is a WebSocket of the API server with the protocol v4. A kubelet reports when it cannot connect, and
nothing when it could. It cannot end one direction alone: containerd ends a connection a second after either direction.
So a client that sends no more still gets the rest, but the program does not learn that it sends no more.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import aiohttp

from commonage.domain.errors import EngineFailure
from commonage.engines.kubernetes.channels.connection import Connections, Container, Socket
from commonage.link.forwarding import CHUNK, IDLE_S, MAX_CONNECTIONS

PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
_REQUEST = b"HEAD / HTTP/1.0\r\n\r\n"
_QUIET_S = 2.0
"""A program that takes a request and says nothing for this long listens, and does not speak HTTP."""
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.2, 3.0
_REST_S = 10.0
"""A client that sends no more is mostly gone. It gets the remaining data until none arrives for this long."""
_TRIES = 64
_UNPRIVILEGED, _SHIFT = 1024, 10_000
"""Ports below are other ones here: who serves them may not be root."""
_log = logging.getLogger(__name__)


class PodRelays:
    """The addresses of this machine that lead to ports of Pods, by attempt."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._relays: dict[str, PodRelay] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def address(self, attempt_id: str, container: Container, port: int) -> tuple[str, int] | None:
        """The address and port here that lead to this port of the container; None if none is free."""
        relay = self._relays.get(attempt_id)
        if relay is None:
            bound = _bound(attempt_id, port if port >= _UNPRIVILEGED else port + _SHIFT)
            if bound is None:
                return None
            relay = self._relays[attempt_id] = PodRelay(self._connections, container, port, bound)
        return relay.address

    def end(self, attempt_id: str) -> None:
        if (relay := self._relays.pop(attempt_id, None)) is not None:
            ending = asyncio.create_task(relay.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for attempt_id in list(self._relays):
            self.end(attempt_id)
        await asyncio.gather(*self._ending)


def _bound(attempt_id: str, port: int) -> socket.socket | None:
    """A socket that holds an address, at which nothing listens yet."""
    for number in range(_TRIES):
        middle, low, last = hashlib.sha256(f"{attempt_id} {number}".encode()).digest()[:3]
        holding = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier process may linger
        try:
            holding.bind((f"127.{128 + middle % 64}.{low}.{1 + last % 254}", port))
        except OSError as error:
            holding.close()
            if error.errno != errno.EADDRINUSE:
                _log.error("attempt %s cannot be reached: %s", attempt_id, error)
                return None
        else:
            holding.setblocking(False)
            return holding
    _log.error("attempt %s cannot be reached: port %d is taken at all addresses tried", attempt_id, port)
    return None


class PodRelay:
    """Leads from the address of `bound`, which this object then owns, to a port of a Pod."""

    def __init__(self, connections: Connections, container: Container, port: int, bound: socket.socket) -> None:
        self._connections, self._container, self._port, self._bound = connections, container, port, bound
        self.address: tuple[str, int] = bound.getsockname()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._serving = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Stop listening and end all connections. None is left when it returns."""
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        self._bound.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- listening ----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        await self._until_program_listens()
        try:
            self._server = await asyncio.start_server(self._connected, sock=self._bound, limit=CHUNK)
        except OSError as error:
            _log.error("cannot listen at %s, port %d: %s", *self.address, error)

    async def _until_program_listens(self) -> None:
        pause, said = _PAUSE_MIN_S, ""
        while True:
            try:
                if await self._program_listens():
                    return
            except (EngineFailure, OSError) as error:
                if str(error) != said:
                    _log.warning("%s is not reached, will try again: %s", self._name, error)
                said = str(error)
            await asyncio.sleep(pause)
            pause = min(_PAUSE_MAX_S, pause * 1.2)

    async def _program_listens(self) -> bool:
        """Raises EngineFailure, OSError."""
        opened = await self._connect()
        try:
            with suppress(OSError):  # refused already, as the messages tell
                await opened.send_bytes(bytes([DATA]) + _REQUEST)
            async with asyncio.timeout(_QUIET_S), aclosing(_messages(opened)) as messages:
                first = await anext(messages, None)
        except TimeoutError:
            return True
        finally:
            await _end(opened)
        return first is None or first[0] == DATA

    @property
    def _name(self) -> str:
        return f"port {self._port} of the Pod {self._container.pod}"

    async def _connect(self) -> Socket:
        """Raises EngineFailure."""
        path, query = f"{self._container.path}/portforward", (("ports", str(self._port)),)
        return await self._connections.connect(path, query, (PROTOCOL,), "a port of a Pod")

    # --- connections --------------------------------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            _log.warning("%s: a connection is refused: %d are open", self._name, MAX_CONNECTIONS)
            _reset(writer)
            return
        task = asyncio.create_task(self._carry(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection that cannot be made, or breaks, is reset: the received data is incomplete."""
        try:
            opened = await self._connect()
            try:
                await _Connection(opened, reader, writer).carry()
            finally:
                await _end(opened)
        except (EngineFailure, OSError) as error:
            _log.info("%s: connection lost: %s", self._name, error)
            _reset(writer)
        except asyncio.CancelledError:
            _reset(writer)
            raise
        else:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


class _Connection:
    """One connection of a client, and its WebSocket."""

    def __init__(self, opened: Socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._opened, self._reader, self._writer = opened, reader, writer
        self._passed = 0

    async def carry(self) -> None:
        """Pass bytes both ways until the program ends, or nothing passes for long.

        Raises OSError if either side is lost.
        """
        sending, receiving = asyncio.create_task(self._send()), asyncio.create_task(self._receive())
        try:
            while not receiving.done():
                before, ends = self._passed, {receiving} if sending.done() else {sending, receiving}
                limit = _REST_S if sending.done() else IDLE_S
                ended, _ = await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if sending in ended:
                    sending.result()
                if not ended and self._passed == before:
                    return
            receiving.result()
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _send(self) -> None:
        """Raises OSError if the client is lost. If the program takes no more, its remaining output gives the cause."""
        while data := await self._reader.read(CHUNK):
            self._passed += len(data)
            try:
                await self._opened.send_bytes(bytes([DATA]) + data)
            except OSError:
                return

    async def _receive(self) -> None:
        async with aclosing(_messages(self._opened)) as messages:
            async for channel, data in messages:
                if channel == ERROR:
                    raise ConnectionResetError(data[:300].decode(errors="replace"))
                self._passed += len(data)
                self._writer.write(data)
                await self._writer.drain()


async def _messages(opened: Socket) -> AsyncGenerator[tuple[int, bytes]]:
    """Channel and data, until the far side ends. Raises ConnectionError if the connection is lost."""
    begun: set[int] = set()  # the first message of a channel repeats the port, in two bytes
    while True:
        message = await opened.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            if not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in begun:
                begun.add(channel)
                data = data[2:]
            if data and channel in (DATA, ERROR):
                yield channel, data
        elif message.type is aiohttp.WSMsgType.CLOSE and message.data == aiohttp.WSCloseCode.OK:
            return
        elif message.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionResetError("the connection to the cluster was lost")


async def _end(opened: Socket) -> None:
    with suppress(aiohttp.ClientError, OSError):
        await opened.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End it so that the other side does not take it for a regular end."""
    if (raw := writer.get_extra_info("socket")) is not None:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
