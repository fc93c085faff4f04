"""The agent as a program on a node of its own, between a container's side and the control plane. No daemon runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.agent.test_firewall import OTHER, Net
from tests.contract.harness.agents import AgentProgram, listening_in, make_config
from tests.fakes.waiting import until

from commonage.link.agent_connections import AgentConnections
from commonage.link.certificate_authority import CertificateAuthority
from commonage.ports.agents import AgentReport, NodeNetwork

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]  # root, network namespaces and iptables
PORT = 8089
_ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as there:
        there.sendall(b"token")
        print(there.recv(5).decode() or "closed")
except OSError:
    print("closed")
"""


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    net = Net()
    yield net
    net.close()


class Site:
    """The control plane's side in this process, the agent on `net.node`."""

    def __init__(self, net: Net, folder: Path) -> None:
        self._net, self._folder = net, folder
        self.authority = CertificateAuthority.open(folder / "ca")

    async def open(self) -> None:
        self.gateway = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        self.linked = AgentConnections(self.authority, gateway_port=self.gateway.sockets[0].getsockname()[1])
        await self.linked.open_on(await asyncio.to_thread(listening_in, self._net.node, "10.96.0.1"))
        self.linked.set_network(NodeNetwork((PORT,), (OTHER, OTHER), ("10.96.0.7",)))
        await asyncio.to_thread(self.start)

    def start(self) -> None:
        """Have the agent run, as joining and systemd would."""
        folder, control = self._folder / "agent", (f"10.96.0.1:{self.linked.port}",)
        config = make_config(folder, self.authority, "node1", 0, control=control, firewall=True)
        self.agent = AgentProgram(folder, config, before=self._net.before(self._net.node))

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    def agent_report(self) -> AgentReport | None:
        return next(iter(self.linked.agent_reports()), None)

    async def until(self, holds: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - asks another machine
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(self.agent.log.read_text()[-3000:]) from None

    async def ask(self, space: str, address: str) -> str:
        """The answer to a word that a program there sends to the gateway's port."""
        words = [*self._net.before(space), sys.executable, "-S", "-c", _ASK, address, str(PORT)]
        return (await asyncio.to_thread(subprocess.check_output, words, text=True)).strip()

    async def close(self) -> None:
        await asyncio.to_thread(self.agent.close)
        await self.linked.close()
        self.gateway.close()


@pytest.fixture
async def site(net: Net, tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(net, tmp_path)
    await site.open()
    yield site
    await site.close()


async def test_containers_are_carried_and_others_are_not(site: Site, net: Net) -> None:
    await site.until(lambda: (one := site.agent_report()) is not None and one.gateway == "10.96.8.1")
    # The rules are there before the agent knows of the gateway's port, too, and then keep everybody from it.
    await site.until(lambda: f"--dport {PORT} " in net.run(net.node, "iptables", "-S"))

    async def is_carried() -> bool:
        return await site.ask(net.inside, "10.96.8.1") == "token"

    await until(is_carried, "what the container says is carried")
    assert await site.ask(net.neighbor, "10.96.8.1") == "closed"  # it has a route to the bridge's address
    assert not net.reaches(net.neighbor, "10.96.8.2", OTHER)
    assert not net.reaches(net.inside, "10.96.0.1", OTHER)


async def test_an_agent_that_starts_again_says_at_once_where_its_gateway_is(site: Site) -> None:
    await site.until(lambda: (one := site.agent_report()) is not None and one.gateway == "10.96.8.1")
    await asyncio.to_thread(site.agent.kill)
    await site.until(lambda: (one := site.agent_report()) is not None and not one.connected)
    message = set()

    def is_back() -> bool:
        one = site.agent_report()
        assert one is not None
        message.add(one.gateway)
        return one.connected

    await asyncio.to_thread(site.start)
    await site.until(is_back)
    assert message == {"10.96.8.1"}
