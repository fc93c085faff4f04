"""The way of this site's workloads to the APIs of the hub and the control plane: by the link, to the workload gateway.

Workloads address these by loopback ports of the control plane. Plain processes find the same ports on this machine;
the engines of containers forward to `port`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Collection

from commonage.domain.errors import EngineFailure
from commonage.link.messages import Nothing
from commonage.link.sites.messages.engine import GATEWAY
from commonage.link.sites.transport.connection import SiteConnection
from commonage.link.sites.transport.stream_forwarder import StreamForwarder

_log = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"


class SiteGateway:
    """`port` serves all workloads while it is open. Without a connection, theirs are closed at once."""

    def __init__(self) -> None:
        self._connection: SiteConnection | None = None
        self._forwarders: dict[int, StreamForwarder] = {}
        self.port = 0

    @property
    def connection(self) -> SiteConnection | None:
        """The current connection to the control plane; None without one."""
        return self._connection

    def use(self, connection: SiteConnection | None) -> None:
        self._connection = connection

    async def open(self) -> None:
        """Raises OSError."""
        listening = socket.create_server((_LOOPBACK, 0))
        self.port = listening.getsockname()[1]
        self._listen(self.port, listening)

    async def serve(self, ports: Collection[int]) -> None:
        """Also serve these ports. One that another program has is left out: the platform may run on this machine."""
        for port in set(ports) - set(self._forwarders):
            try:
                listening = socket.create_server((_LOOPBACK, port))
            except OSError as error:
                _log.warning("workloads cannot reach the platform by port %s of this machine: %s", port, error)
                continue
            self._listen(port, listening)

    def _listen(self, port: int, listening: socket.socket) -> None:
        forwarder = self._forwarders[port] = StreamForwarder(f"workload gateway {port}", self._carry)
        forwarder.listen(listening)

    async def _carry(self, connection: socket.socket) -> None:
        if self._connection is None:
            raise EngineFailure("the control plane is not connected", retryable=True)
        await self._connection.carry(GATEWAY, Nothing(), connection)

    def close(self) -> None:
        for forwarder in self._forwarders.values():
            forwarder.close()
