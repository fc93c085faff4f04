"""Ports of Pods for a control plane outside the cluster: forwards a loopback port to a port of a Pod. Not used yet.

The API server of 1.36 knows two protocols for this over WebSocket: `v4.channel.k8s.io`, used here, one connection for
each stream, and SPDY inside of WebSocket (`SPDY/3.1+portforward.k8s.io`), as kubectl uses. Neither can close one
direction alone here, and the relay does not need it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress

import aiohttp

from commonage.domain.errors import EngineFailure
from commonage.engines.kubernetes.channels.connection import Connections, Container, Socket
from commonage.link.forwarding import CHUNK, MAX_CONNECTIONS, Forwarder, Streams

_log = logging.getLogger(__name__)
PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
LOOPBACK = "127.0.0.1"


class PodRelay:
    """Listens on loopback and forwards each connection to `port` of the Pod."""

    def __init__(self, connections: Connections, container: Container, port: int) -> None:
        self._connections, self._container, self._port = connections, container, port
        # All peers are this machine's proxy, so one peer may have all.
        self._forwarder = Forwarder(
            f"port {port} of Pod {container.pod}", self._open, max_per_peer=MAX_CONNECTIONS, max_total=MAX_CONNECTIONS
        )
        self._pumps: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        """Listen on this loopback port. Raises OSError."""
        await self._forwarder.listen(LOOPBACK, port, lambda address: address == LOOPBACK)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        self._forwarder.close()
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _open(self) -> Streams:
        query = (("ports", str(self._port)),)
        path = f"{self._container.path}/portforward"
        try:
            opened = await self._connections.connect(path, query, (PROTOCOL,), "a port of a Pod")
        except EngineFailure as error:
            raise ConnectionError(str(error)) from error
        outer, inner = socket.socketpair()
        streams = await asyncio.open_connection(sock=outer, limit=CHUNK)
        pump = asyncio.create_task(self._pump(opened, await asyncio.open_connection(sock=inner, limit=CHUNK)))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return streams

    async def _pump(self, opened: Socket, streams: Streams) -> None:
        reader, writer = streams
        tasks = [asyncio.create_task(_send(reader, opened)), asyncio.create_task(self._receive(opened, writer))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.close()
            with suppress(aiohttp.ClientError, OSError):
                await opened.close()

    async def _receive(self, opened: Socket, writer: asyncio.StreamWriter) -> None:
        """The first message of each channel repeats the port, in two bytes."""
        begun: set[int] = set()
        with suppress(OSError):
            async for message in opened:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                channel, data = message.data[0], message.data[1:]
                if channel not in begun:
                    begun.add(channel)
                    data = data[2:]
                if channel == ERROR and data:
                    text = data[:300].decode(errors="replace")
                    _log.warning("port %d of Pod %s: connection closed: %s", self._port, self._container.pod, text)
                    return
                if channel == DATA and data:
                    writer.write(data)
                    await writer.drain()


async def _send(reader: asyncio.StreamReader, opened: Socket) -> None:
    with suppress(aiohttp.ClientError, OSError):
        while data := await reader.read(CHUNK):
            await opened.send_bytes(bytes([DATA]) + data)
