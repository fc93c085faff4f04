"""Packets in a stream of a site link: a type, a length and a payload. And a TCP connection carried by a stream."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from contextlib import suppress
from enum import IntEnum
from typing import TypeVar

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.errors import EngineFailure
from commonage.link.exchange import parse_json
from commonage.link.sites.transport.streams import TURN_BYTES, Stream

T = TypeVar("T")
_HEADER = struct.Struct("!BI")
_RESET = struct.pack("ii", 1, 0)
MAX_PACKET_BYTES = 8 * 1024 * 1024


class PacketType(IntEnum):
    """STDIN, OUT and ERR are data of a command; the numbers of OUT and ERR are those of `ports.execs`."""

    STDIN = 0
    OUT = 1
    ERR = 2
    END_OF_INPUT = 3
    RESIZE = 4
    CLOSE = 5
    EXIT_CODE = 6
    LINES = 7
    ABSENT = 8
    WANTED = 9
    STORED = 10


class Packets:
    """The packets of one stream. Reading and writing may happen at the same time."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._received = bytearray()
        self._sending = asyncio.Lock()

    async def send(self, kind: PacketType, payload: bytes = b"") -> None:
        async with self._sending:
            await self._stream.write(_HEADER.pack(kind, len(payload)) + payload)

    async def read(self) -> tuple[PacketType, bytes] | None:
        """The next packet; None at the end of the stream. Raises EngineFailure, also for data that is not a packet."""
        while (packet := self._next()) is None:
            data = await self._stream.read()
            if not data:
                return None
            self._received += data
        return packet

    def _next(self) -> tuple[PacketType, bytes] | None:
        if len(self._received) < _HEADER.size:
            return None
        kind, size = _HEADER.unpack_from(self._received)
        if size > MAX_PACKET_BYTES or kind not in list(PacketType):
            raise EngineFailure(f"the other side sent a packet of type {kind} with {size} bytes")
        end = _HEADER.size + size
        if len(self._received) < end:
            return None
        payload = bytes(self._received[_HEADER.size : end])
        del self._received[:end]
        return PacketType(kind), payload


def encode(value: object) -> bytes:
    return json.dumps(to_json(value), separators=(",", ":")).encode()


def decode(kind: type[T], payload: bytes) -> T:
    """Raises EngineFailure."""
    try:
        return from_json(kind, parse_json(payload), ignore_unknown=True)
    except (ValueError, RecursionError, Unreadable) as error:
        raise EngineFailure(f"the other side sent a packet that cannot be read: {error}") from error


async def connect(host: str, port: int) -> socket.socket:
    """A connection for `join`. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        await loop.sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


async def join(stream: Stream, connection: socket.socket) -> None:
    """Pass bytes both ways until both sides have ended, or one fails. Closes the connection, which does not block.

    Works on the socket itself: the buffers of asyncio's streams would copy each byte twice more.
    """
    loop = asyncio.get_running_loop()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def outward() -> None:
        buffer = memoryview(bytearray(TURN_BYTES))
        while count := await loop.sock_recv_into(connection, buffer):
            await stream.write(buffer[:count])
        await stream.end()

    async def inward() -> None:
        while data := await stream.read():
            await loop.sock_sendall(connection, data)
        connection.shutdown(socket.SHUT_WR)

    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(outward())
            both.create_task(inward())
    except* (OSError, EngineFailure) as failed:  # one side is gone: the other side learns it by the abort
        stream.abort(f"the connection ended: {failed.exceptions[0]}")
        reset(connection)
    finally:
        connection.close()


def reset(connection: socket.socket) -> None:
    """Close it so that the program at the other end gets an error, not the end of the stream."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
