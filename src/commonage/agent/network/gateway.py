"""The container gateway: how containers of this node reach the hub and the control plane by TLS.

It listens at the node's address on the containers' bridge, and carries each connection to the control plane in its own
tunnel: a TLS connection to the port for agents. Run by `agent`; the far end is `commonage.link.listener`.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import logging
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from commonage import __version__
from commonage.agent.config import AgentConfig, read_state, save_state
from commonage.agent.connection import dial
from commonage.domain.errors import CommonageError
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import GatewayNotListening
from commonage.link.connection import FRAME_ERRORS, encode_frame, read_frame
from commonage.link.exchange import error_text, message_frame
from commonage.link.forwarding import CHUNK, Forwarder, Streams
from commonage.link.messages import OPEN, PROTOCOL, TUNNEL, Hello
from commonage.messages import text
from commonage.ports.agents import CONTAINER_BRIDGE, NodeNetwork

_log = logging.getLogger(__name__)
_CHECK_INTERVAL_S = 5.0
_TIMEOUT_S = 10.0
_NETWORK_TIMEOUT_S = 2.0
_MAX_PER_CONTAINER, _MAX_TUNNELS = 16, 128
_MAX_HANDSHAKES = 8  # at once: they cost the control plane more than the bytes do
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_IFREQ = struct.Struct("16s16s")


class ContainerGateway:
    """The gateway of this node. `changed` is called when its address or its network changes.

    `fault` says why it does not listen; None while it does. Without a listener any other program could take its port
    and receive the containers' connections.
    """

    def __init__(self, config: AgentConfig, folder: Path, changed: Callable[[], None]) -> None:
        self._config, self._changed = config, changed
        self._control = list(config.control)
        self._file = folder / "network.json"
        self._forwarder = Forwarder(
            "container gateway", self._open_tunnel, max_per_peer=_MAX_PER_CONTAINER, max_total=_MAX_TUNNELS
        )
        self._handshakes = asyncio.Semaphore(_MAX_HANDSHAKES)
        self._opening, self._network_changed, self._network_known = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self.fault: Reason | None = None
        self.network = read_state(self._file, NodeNetwork, NodeNetwork())
        self.address = ""
        """Where containers reach it; empty while it does not listen."""

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"{self.address}:{port}" for port in self.network.gateway_ports) if self.address else ()

    def set_network(self, network: NodeNetwork) -> None:
        self._network_known.set()
        if network == self.network:
            return
        self.network = network
        save_state(self._file, network)
        self._network_changed.set()
        self._changed()

    async def wait_ready(self) -> None:
        """On a new node wait a moment for `set_network`, so that no workload starts before the gateway listens."""
        if not self.network.gateway_ports:
            with suppress(TimeoutError):
                async with asyncio.timeout(_NETWORK_TIMEOUT_S):
                    await self._network_known.wait()
        await self.open()

    async def run(self) -> None:
        """Keep listening where the bridge is, until cancelled."""
        try:
            while True:
                self._network_changed.clear()
                await self.open()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_INTERVAL_S):
                        await self._network_changed.wait()
        finally:
            self._forwarder.close()

    async def open(self) -> None:
        """Listen at the bridge's address now, on the ports of the network. A failure shows as `fault`."""
        async with self._opening:
            await self._open()

    async def _open(self) -> None:
        bridge, ports, before = network_of(CONTAINER_BRIDGE), self.network.gateway_ports, (self.addresses, self.fault)
        expected = set() if bridge is None else {(str(bridge.ip), port) for port in ports}
        for address in {address for address, _ in self._forwarder.listening - expected}:
            self._forwarder.stop_at(address)
        fault = None if bridge is None else await self._listen(bridge, ports)
        self.fault = fault
        self.address = str(bridge.ip) if bridge is not None and ports and fault is None else ""
        if (self.addresses, self.fault) != before:
            _log.info("containers reach the control plane by TLS at %s", ", ".join(self.addresses) or "no address")
            self._changed()

    async def _listen(self, bridge: ipaddress.IPv4Interface, ports: tuple[int, ...]) -> Reason | None:
        try:
            for port in ports:
                # Packets for this address may also come from elsewhere: only containers of this node may connect.
                await self._forwarder.listen(
                    str(bridge.ip), port, lambda connection: ipaddress.ip_address(connection) in bridge.network
                )
        except OSError as error:
            fault = GatewayNotListening(error=error.strerror or str(error))
            if fault != self.fault:
                _log.error("%s", text(fault))
            return fault
        return None

    async def _open_tunnel(self) -> Streams:
        """Open a tunnel to the control plane, first to the address that answered last. Raises OSError."""
        reason = "the settings name no address of the control plane"
        for address in list(self._control):
            try:
                async with self._handshakes:
                    return await open_tunnel(self._config, address)
            except (CommonageError, *FRAME_ERRORS) as error:  # TimeoutError is an OSError
                reason = error_text(error)
                self._control.remove(address)
                self._control.append(address)
        raise ConnectionError(reason)


async def open_tunnel(config: AgentConfig, address: str) -> Streams:
    """Open one tunnel; bytes may be written once it returns.

    Raises ConnectionLost, ConnectionError, and the errors in BROKEN.
    """
    reader, writer = await dial(config, address, limit=CHUNK)
    try:
        writer.write(encode_frame(message_frame(TUNNEL, Hello(config.node, PROTOCOL, __version__))))
        frame = await read_frame(reader, _TIMEOUT_S)
        if frame.get("message") != OPEN:
            body = frame.get("body")
            reason = body.get("reason") if isinstance(body, dict) else None
            raise ConnectionError(f"the control plane refuses a tunnel: {str(reason)[:300]}")
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


def network_of(interface: str) -> ipaddress.IPv4Interface | None:
    """The node's IPv4 address and network at an interface; None if it has none, or the interface does not exist."""
    request = _IFREQ.pack(interface.encode(), b"")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            address, mask = (
                socket.inet_ntoa(fcntl.ioctl(any_socket, what, request)[20:24])
                for what in (_SIOCGIFADDR, _SIOCGIFNETMASK)
            )
        except OSError:
            return None
    return ipaddress.IPv4Interface(f"{address}/{mask}")
