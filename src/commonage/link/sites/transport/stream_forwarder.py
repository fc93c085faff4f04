"""Listens on a loopback address and carries each connection over a site link. Used by both ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from commonage.domain.errors import EngineFailure

_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 512
_PAUSE_S = 1.0


class StreamForwarder:
    """`carry` carries one connection to its end; the connection is closed if it raises EngineFailure."""

    def __init__(self, name: str, carry: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._name, self._carry_there = name, carry
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def listen(self, listening: socket.socket) -> None:
        """Accept connections of this listening socket until `close`, which closes it soon."""
        self._accepting = asyncio.create_task(self._accept(listening), name=self._name)

    def close(self) -> None:
        for task in (self._accepting, *self._connections):
            if task is not None:
                task.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            listening.setblocking(False)
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:  # no more file descriptors, or the client has gone already
                    _log.warning("%s: a connection is not accepted: %s", self._name, error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                task = asyncio.create_task(self._carry(connection))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

    async def _carry(self, connection: socket.socket) -> None:
        with connection:
            try:
                if len(self._connections) > MAX_CONNECTIONS:
                    raise EngineFailure(f"{MAX_CONNECTIONS} connections are open, the limit")
                await self._carry_there(connection)
            except EngineFailure as error:
                _log.info("%s: a connection is closed: %s", self._name, error)
