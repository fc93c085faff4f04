"""Attacks on the tunnels by which agents carry containers' connections: real TLS over the loopback.

The attacker is root on a node, with that node's certificate, or a program next to a container.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.harness.agents import make_config

from commonage.agent.config import AgentConfig
from commonage.agent.connection import dial
from commonage.agent.network import gateway as container_gateway
from commonage.agent.network.gateway import ContainerGateway, open_tunnel
from commonage.domain.reasons.nodes import GatewayNotListening
from commonage.link import listener as tunnels
from commonage.link.agent_connections import AgentConnections
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.forwarding import Streams
from commonage.ports.agents import NodeNetwork
from commonage.server.processes.ports import free_port

pytestmark = pytest.mark.anyio
HERE, OTHER = "127.0.0.1", "127.0.0.9"


class Site:
    """The control plane's side, with something at the workload gateway's port that says back what it gets."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, CertificateAuthority.open(folder / "ca")
        self.served = 0

    async def open(self) -> None:
        self.gateway = await asyncio.start_server(self._serve, HERE, 0)
        self.agents = AgentConnections(self.authority, gateway_port=self.gateway.sockets[0].getsockname()[1])
        await self.agents.open(HERE, 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served += 1
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    def config(self, node: str) -> AgentConfig:
        return make_config(self.folder / node, self.authority, node, self.agents.port)

    async def tunnel(self, config: AgentConfig) -> Streams:
        return await open_tunnel(config, f"{HERE}:{self.agents.port}")

    async def close(self) -> None:
        await self.agents.close()
        self.gateway.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.open()
    yield site
    await site.close()


async def said_back(streams: Streams, data: bytes) -> bytes:
    try:
        async with asyncio.timeout(20):
            streams[1].write(data)
            return await streams[0].readexactly(len(data))
    except (asyncio.IncompleteReadError, OSError):
        return b""


async def test_a_tunnel_carries_all_bytes_both_ways(site: Site) -> None:
    streams = await site.tunnel(site.config("node1"))
    much = bytes(range(256)) * 8192
    assert await said_back(streams, much) == much
    streams[1].close()


async def test_a_node_opens_none_under_another_name(site: Site) -> None:
    config = replace(site.config("node1"), node="node2")
    with pytest.raises(ConnectionError, match="and its certificate node1"):
        await site.tunnel(config)
    assert site.served == 0


async def test_somebody_without_a_certificate_opens_none(site: Site, tmp_path: Path) -> None:
    strange = CertificateAuthority.open(tmp_path / "strange")
    config = make_config(tmp_path / "x", strange, "node1", site.agents.port)
    trusting = replace(config, authority=site.config("node1").authority)
    with pytest.raises((OSError, EOFError, ssl.SSLError)):
        await site.tunnel(trusting)
    assert site.served == 0


async def test_a_node_that_is_removed_loses_its_tunnels_and_opens_no_more(site: Site) -> None:
    config = site.config("node1")
    Path(config.certificate).write_text(
        site.authority.admit(Path(config.request).read_text(), "node1", "node1").certificate
    )
    removed, other = await site.tunnel(config), await site.tunnel(site.config("node2"))
    assert await said_back(removed, b"x") == await said_back(other, b"x") == b"x"
    await site.agents.revoke("node1")
    assert await said_back(removed, b"x") == b""
    assert await said_back(other, b"x") == b"x"
    with pytest.raises(ConnectionError, match="removed from this site"):
        await site.tunnel(config)
    other[1].close()


async def test_one_node_cannot_take_all_tunnels(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "MAX_PER_NODE", 3)
    config = site.config("node1")
    kept = [await site.tunnel(config) for _ in range(3)]
    with pytest.raises(ConnectionError, match="the limit for one node"):
        await site.tunnel(config)
    other = await site.tunnel(site.config("node2"))
    assert await said_back(other, b"x") == b"x"
    for one in (*kept, other):
        one[1].close()


async def test_what_comes_before_the_tunnel_is_open_leads_nowhere(site: Site) -> None:
    reader, writer = await dial(site.config("node1"), f"{HERE}:{site.agents.port}")
    writer.write(b'{"message":"tunnel","body":{"node":"node1","protocol":99,"version":"x"}}\nGET / HTTP/1.0\r\n\r\n')
    assert b'"refused"' in await reader.readline()
    assert site.served == 0
    writer.close()


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the loopback plays the bridge: 127.0.0.1 is the node, 127.0.0.2 a container, 127.0.0.9 neither."""
    there = ipaddress.IPv4Interface(f"{HERE}/30")
    monkeypatch.setattr(container_gateway, "network_of", lambda _: there)


async def test_the_gateway_takes_connections_of_its_nodes_containers_only(site: Site, bridge: None) -> None:
    port = free_port()
    gateway = ContainerGateway(site.config("node1"), site.folder, lambda: None)
    gateway.set_network(NodeNetwork((port,)))
    await gateway.open()
    assert gateway.addresses == (f"{HERE}:{port}",)
    inside = await asyncio.open_connection(HERE, port, local_addr=("127.0.0.2", 0))
    assert await said_back(inside, b"token") == b"token"
    outside = await asyncio.open_connection(HERE, port, local_addr=(OTHER, 0))
    assert await said_back(outside, b"token") == b""
    assert site.served == 1
    inside[1].close()
    gateway.set_network(NodeNetwork())
    await gateway.open()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HERE, port)


async def test_a_port_that_somebody_took_before_is_a_fault_of_the_node(site: Site, bridge: None) -> None:
    thief = await asyncio.start_server(lambda *_: None, HERE, 0)
    port = thief.sockets[0].getsockname()[1]
    gateway = ContainerGateway(site.config("node1"), site.folder, lambda: None)
    gateway.set_network(NodeNetwork((port,)))
    await gateway.open()
    assert gateway.address == ""
    assert isinstance(gateway.fault, GatewayNotListening)
    thief.close()
    await thief.wait_closed()
    await gateway.open()
    assert (gateway.address, gateway.fault) == (HERE, None)


async def test_the_network_is_known_before_the_control_plane_is_heard(site: Site, bridge: None) -> None:
    port = free_port()
    ContainerGateway(site.config("node1"), site.folder, lambda: None).set_network(NodeNetwork((port,)))
    again = ContainerGateway(site.config("node1"), site.folder, lambda: None)
    await again.open()
    assert again.addresses == (f"{HERE}:{port}",)
