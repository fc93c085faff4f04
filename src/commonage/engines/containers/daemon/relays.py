"""Relays by which containers reach the hub and the control plane, which listen on this node's loopback only.

At an address that containers reach, the relays listen on the ports of the hub and the control plane. Every connection
leads to the workload gateway (`server.web.workload_gateway`), which serves the API of both and nothing else. Used by
engines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from commonage.link.forwarding import CHUNK, MAX_PER_PEER, Admits, Forwarder, Streams

_log = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"


class Relays:
    """The relays of all networks. Containers connect to `ports`; `gateway_port` is the workload gateway's.

    Each address may have at most `max_per_peer` open connections.
    """

    def __init__(self, ports: Collection[int], gateway_port: int, max_per_peer: int = MAX_PER_PEER) -> None:
        self._ports = tuple(ports)
        self._gateway_port = gateway_port
        self._forwarder = Forwarder("relay for containers", self._open_gateway, max_per_peer=max_per_peer)

    async def open_at(self, address: str, admits: Admits) -> None:
        """Listen on this address for the peers that `admits` accepts. Idempotent; a failure is logged."""
        for port in self._ports:
            try:
                await self._forwarder.listen(address, port, admits)
            except OSError as error:
                _log.warning("containers cannot reach port %d of this machine at %s: %s", port, address, error)

    def close_at(self, address: str) -> None:
        self._forwarder.stop_at(address)

    def close(self) -> None:
        self._forwarder.close()

    async def _open_gateway(self) -> Streams:
        return await asyncio.open_connection(_LOOPBACK, self._gateway_port, limit=CHUNK)
