"""Packets in a stream of a site link: a type, a length and a payload. And a TCP connection carried by a stream."""

from __future__ import annotations

import asyncio
import json
import struct
from enum import IntEnum
from typing import TypeVar

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.errors import EngineFailure
from commonage.link import forwarding
from commonage.link.sites.streams import Stream

T = TypeVar("T")
_HEADER = struct.Struct("!BI")
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
        """The next packet; None at the end of the stream. Raises EngineFailure, also for what is no packet."""
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
        return from_json(kind, json.loads(payload), ignore_unknown=True)
    except (ValueError, RecursionError, Unreadable) as error:
        raise EngineFailure(f"the other side sent a packet that cannot be read: {error}") from error


async def join(stream: Stream, connection: forwarding.Streams) -> None:
    """Pass bytes both ways until both sides have ended, or one fails. Closes the connection."""
    reader, writer = connection

    async def outward() -> None:
        while data := await reader.read(forwarding.CHUNK):
            await stream.write(data)
        await stream.end()

    async def inward() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(outward())
            both.create_task(inward())
    except* (OSError, EngineFailure) as failed:  # one side is gone: the other side learns it by the abort
        stream.abort(f"the connection ended: {failed.exceptions[0]}")
    finally:
        writer.close()
