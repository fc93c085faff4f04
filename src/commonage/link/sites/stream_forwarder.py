"""Listens on a loopback address and carries each connection by a stream of a site link. Used by both ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from commonage.domain.errors import EngineFailure
from commonage.link.forwarding import CHUNK
from commonage.link.sites.packets import join
from commonage.link.sites.streams import Stream

_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 512


class StreamForwarder:
    """`open_stream` opens a stream for one connection; the connection is closed if it raises EngineFailure."""

    def __init__(self, name: str, open_stream: Callable[[], Awaitable[Stream]]) -> None:
        self._name, self._open_stream = name, open_stream
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_server(self._on_connection, sock=listening, limit=CHUNK)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                raise EngineFailure(f"{MAX_CONNECTIONS} connections are open, the limit")
            async with await self._open_stream() as stream:
                await join(stream, (reader, writer))
        except EngineFailure as error:
            _log.info("%s: a connection is closed: %s", self._name, error)
        finally:
            writer.close()
