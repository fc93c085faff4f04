"""The container gateway: how containers of this node reach the hub and the control plane by TLS.

It listens at the node's address on the containers' bridge, and carries each connection to the control plane in its own
tunnel: a TLS connection to the port for agents. Run by `run`; the far end is `commonage.link.tunnels`.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import json
import logging
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from commonage import __version__
from commonage.agent.config import AgentConfig
from commonage.agent.connection import dial
from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.errors import CommonageError
from commonage.link.connection import FRAME_ERRORS, encode_frame, error_text, read_frame, said
from commonage.link.forwarding import CHUNK, Forwarder, Streams
from commonage.link.messages import OPEN, PROTOCOL, TUNNEL, Hello
from commonage.ports.agents import CONTAINER_BRIDGE, NodeNetwork

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 5.0
_WITHIN_S = 10.0
_LEARN_WITHIN_S = 2.0
_MOST_PER_CONTAINER, _MOST_TUNNELS = 16, 128
_MOST_HANDSHAKES = 8  # at once: they cost the control plane more than the bytes do
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_IFREQ = struct.Struct("16s16s")


class ContainerGateway:
    """The gateway of this node. `changed` is called when its address or its network changes.

    `fault` says why it does not listen; empty while it does. Without a listener any other program could take its port
    and receive the containers' connections.
    """

    def __init__(self, config: AgentConfig, folder: Path, changed: Callable[[], None]) -> None:
        self._config, self._changed = config, changed
        self._control = list(config.control)
        self._file = folder / "network.json"
        self._forwarder = Forwarder(
            "container gateway", self._open_tunnel, most_per_peer=_MOST_PER_CONTAINER, most=_MOST_TUNNELS
        )
        self._handshakes = asyncio.Semaphore(_MOST_HANDSHAKES)
        self._opening, self._look_again, self._learned = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self.fault = ""
        self.network = _kept(self._file)
        self.address = ""
        """Where containers reach it; empty while it does not listen."""

    @property
    def reaches(self) -> tuple[str, ...]:
        """The address that containers connect to, as `ADDRESS:PORT`."""
        return tuple(f"{self.address}:{port}" for port in self.network.gateway_ports) if self.address else ()

    def learn(self, network: NodeNetwork) -> None:
        """Take the settings of the node's network from the control plane."""
        self._learned.set()
        if network == self.network:
            return
        self.network = network
        with suppress(OSError):  # a full disk: the control plane sends it again with the next link
            self._file.write_text(json.dumps(to_json(network)), encoding="utf-8")
        self._look_again.set()
        self._changed()

    async def settle(self) -> None:
        """On a new node wait a moment for `learn`, so that no workload starts before the gateway listens."""
        if not self.network.gateway_ports:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEARN_WITHIN_S):
                    await self._learned.wait()
        await self.open()

    async def keep(self) -> None:
        """Keep listening where the bridge is, until cancelled."""
        try:
            while True:
                self._look_again.clear()
                await self.open()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        await self._look_again.wait()
        finally:
            self._forwarder.close()

    async def open(self) -> None:
        """Listen at the bridge's address now, on the ports of the network. A failure shows as `fault`."""
        async with self._opening:
            await self._open()

    async def _open(self) -> None:
        bridge, ports, before = network_of(CONTAINER_BRIDGE), self.network.gateway_ports, (self.reaches, self.fault)
        wanted = set() if bridge is None else {(str(bridge.ip), port) for port in ports}
        for address in {address for address, _ in self._forwarder.listening - wanted}:
            self._forwarder.stop_at(address)
        fault = "" if bridge is None else await self._listen(bridge, ports)
        self.fault = fault
        self.address = str(bridge.ip) if bridge is not None and ports and not fault else ""
        if (self.reaches, self.fault) != before:
            _log.info("containers reach the control plane by TLS at %s", ", ".join(self.reaches) or "no address")
            self._changed()

    async def _listen(self, bridge: ipaddress.IPv4Interface, ports: tuple[int, ...]) -> str:
        """Listen there; returns the reason if that failed, else an empty string."""
        try:
            for port in ports:
                # Packets for this address may also come from elsewhere: only containers of this node may connect.
                await self._forwarder.listen(
                    str(bridge.ip), port, lambda peer: ipaddress.ip_address(peer) in bridge.network
                )
        except OSError as error:
            fault = (
                f"containers cannot reach the control plane: {error.strerror}. End the program that has the port "
                "(ss -tlnp), or set another hub_port and control_port"
            )
            if fault != self.fault:
                _log.error("%s", fault)
            return fault
        return ""

    async def _open_tunnel(self) -> Streams:
        """Open a tunnel to the control plane, first to the address that answered last. Raises OSError."""
        why = "no address of the control plane is known"
        for address in list(self._control):
            try:
                async with self._handshakes:
                    return await open_tunnel(self._config, address)
            except (CommonageError, *FRAME_ERRORS) as error:  # TimeoutError is an OSError
                why = error_text(error)
                self._control.remove(address)
                self._control.append(address)
        raise ConnectionError(why)


async def open_tunnel(config: AgentConfig, address: str) -> Streams:
    """Open one tunnel; bytes may be written once it returns.

    Raises ConnectionLost, ConnectionError, and the errors in BROKEN.
    """
    reader, writer = await dial(config, address, limit=CHUNK)
    try:
        writer.write(encode_frame(said(TUNNEL, Hello(config.node, PROTOCOL, __version__))))
        frame = await read_frame(reader, _WITHIN_S)
        if frame.get("say") != OPEN:
            words = frame.get("with")
            why = words.get("why") if isinstance(words, dict) else None
            raise ConnectionError(f"the control plane refuses a tunnel: {str(why)[:300]}")
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


def _kept(file: Path) -> NodeNetwork:
    try:
        return from_json(NodeNetwork, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, Unreadable):
        return NodeNetwork()
