"""Streams over TLS that receive into one buffer each. Used by both ends of a site link, in place of asyncio's.

For asyncio's own, the TLS layer allocates 256 KiB for every record of 16 KiB, which costs more than to decrypt it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from commonage.link.sites.transport.frames import CHUNK_BYTES

BUFFER_BYTES = 256 * 1024
OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


class _Receiver(asyncio.BufferedProtocol):
    """Passes everything to asyncio's protocol of streams, which would otherwise receive it itself."""

    def __init__(self, on_connection: OnConnection | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(BUFFER_BYTES, loop=loop)
        self.streams = asyncio.StreamReaderProtocol(self.reader, on_connection, loop=loop)
        self._buffer = memoryview(bytearray(CHUNK_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.reader.feed_data(self._buffer[:nbytes])  # which copies it

    def eof_received(self) -> bool | None:
        return self.streams.eof_received()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.streams.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.connection_lost(exc)

    def pause_writing(self) -> None:
        self.streams.pause_writing()

    def resume_writing(self) -> None:
        self.streams.resume_writing()


async def listen(
    listening: socket.socket, context: ssl.SSLContext, on_connection: OnConnection, handshake_timeout_s: float
) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(
        lambda: _Receiver(on_connection), sock=listening, ssl=context, ssl_handshake_timeout=handshake_timeout_s
    )


async def dial(
    host: str, port: int, context: ssl.SSLContext, server_name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError, SSLError."""
    loop = asyncio.get_running_loop()
    transport, receiver = await loop.create_connection(_Receiver, host, port, ssl=context, server_hostname=server_name)
    return receiver.reader, asyncio.StreamWriter(transport, receiver.streams, receiver.reader, loop)
