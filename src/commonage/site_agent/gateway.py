"""The way of this site's workloads to the APIs of the hub and the control plane: by the link, to the workload gateway.

Workloads address these by loopback ports of the control plane. Plain processes find the same ports on this machine;
the engines of containers forward to `port`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection

from commonage.link.sites.stream_forwarder import StreamForwarder
from commonage.link.sites.streams import Stream

_log = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"


class SiteGateway:
    """`open_stream` opens a GATEWAY stream. `port` serves all workloads; it is chosen at the first `open`."""

    def __init__(self, open_stream: Callable[[], Awaitable[Stream]]) -> None:
        self._forwarder = {0: StreamForwarder("workload gateway", open_stream)}
        self._open_stream = open_stream
        self.port = 0

    async def open(self) -> None:
        listening = socket.create_server((_LOOPBACK, 0))
        self.port = listening.getsockname()[1]
        await self._forwarder[0].listen(listening)

    async def serve(self, ports: Collection[int]) -> None:
        """Also serve these ports. One that another program has is left out: the platform may run on this machine."""
        for port in set(ports) - set(self._forwarder):
            try:
                listening = await asyncio.to_thread(socket.create_server, (_LOOPBACK, port))
            except OSError as error:
                _log.warning("workloads cannot reach the platform by port %s of this machine: %s", port, error)
                continue
            forwarder = self._forwarder[port] = StreamForwarder(f"workload gateway {port}", self._open_stream)
            await forwarder.listen(listening)

    def close(self) -> None:
        for forwarder in self._forwarder.values():
            forwarder.close()
