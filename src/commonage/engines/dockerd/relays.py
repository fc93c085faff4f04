"""How containers reach the hub and the control plane, which listen on this machine's loopback only.

On the gateway address of each tenant's network we listen at the same ports and pass the bytes on: so no port of ours is
open to any other network, and nothing else of the loopback can be reached from a container.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial

_log = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"
_CHUNK = 64 * 1024


class Relays:
    """The relays of all networks; `ports` are those of the loopback that they lead to."""

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = tuple(ports)
        self._servers: dict[tuple[str, int], asyncio.Server] = {}

    async def open_at(self, address: str) -> None:
        """Have the relays listen on this address. Idempotent; one that cannot be is said in the log."""
        for port in self._ports:
            if (address, port) not in self._servers:
                try:
                    server = await asyncio.start_server(partial(_connect, port), address, port)
                except OSError as error:
                    _log.warning("containers will not reach port %d of this machine at %s: %s", port, address, error)
                else:
                    self._servers[address, port] = server

    def close_at(self, address: str) -> None:
        """The network with this address goes."""
        for key in [key for key in self._servers if key[0] == address]:
            self._servers.pop(key).close()

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()


async def _connect(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, until both sides are done."""
    try:
        there, back = await asyncio.open_connection(_LOOPBACK, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
    for one in (writer, back):
        one.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
    except OSError:  # one side is gone: nothing more comes through
        target.close()
