"""The firewall for real: a node in a network namespace, a container's side behind its bridge, a neighboring node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.contract.harness.leftovers import SPACE, clear_leftovers, tag
from tests.fakes.waiting import wait_until

from commonage.agent.network.firewall import Firewall
from commonage.agent.network.firewall_rules import FORWARD, INPUT, Plan

pytestmark = pytest.mark.needs("docker")  # root, network namespaces and iptables

BRIDGE = "docker_gwbridge"
HUB, OTHER = 8081, 8082


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Net:
    """`node` (10.96.0.1 outside, 10.96.8.1 at the bridge), `inside` (10.96.8.2 behind it), `neighbor` (10.96.0.2)."""

    def __init__(self) -> None:
        self._servers: list[subprocess.Popen[bytes]] = []
        clear_leftovers()
        mark = f"{SPACE}{tag()}w"
        self.node, self.inside, self.neighbor = f"{mark}m", f"{mark}i", f"{mark}b"
        for space in (self.node, self.inside, self.neighbor):
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        self._cable("eth0", "10.96.0.1/24", self.neighbor, "10.96.0.2/24")
        for space, address in ((self.node, "fd96::1"), (self.neighbor, "fd96::2")):
            ip("-n", space, "addr", "add", f"{address}/64", "dev", "eth0", "nodad")
        ip("-n", self.node, "link", "add", BRIDGE, "type", "bridge")
        ip("-n", self.node, "addr", "add", "10.96.8.1/24", "dev", BRIDGE)
        ip("-n", self.node, "link", "set", BRIDGE, "up")
        self._cable("veth1", None, self.inside, "10.96.8.2/24")
        ip("-n", self.node, "link", "set", "veth1", "master", BRIDGE)
        ip("-n", self.inside, "route", "add", "default", "via", "10.96.8.1")
        ip("-n", self.neighbor, "route", "add", "10.96.8.0/24", "via", "10.96.0.1")
        for name in ("169.254.169.254/32", "203.0.113.7/32"):  # a cloud's metadata, and the world
            ip("-n", self.neighbor, "addr", "add", name, "dev", "lo")
            ip("-n", self.node, "route", "add", name, "via", "10.96.0.2")
        self.run(self.node, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        # What Docker has there before us.
        self.run(self.node, "iptables", "-N", "DOCKER-USER")
        self.run(self.node, "iptables", "-A", "DOCKER-USER", "-j", "RETURN")
        self.run(self.node, "iptables", "-I", "FORWARD", "-j", "DOCKER-USER")
        for space in (self.node, self.neighbor, self.inside):
            for port in (HUB, OTHER):
                self._servers.append(self._serve(space, port))

    def _cable(self, name: str, address: str | None, space: str, their_address: str) -> None:
        ip("-n", self.node, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", space)
        if address is not None:
            ip("-n", self.node, "addr", "add", address, "dev", name)
        ip("-n", self.node, "link", "set", name, "up")
        ip("-n", space, "addr", "add", their_address, "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")

    def before(self, space: str) -> tuple[str, ...]:
        return ("nsenter", f"--net=/run/netns/{space}")

    def run(self, space: str, *words: str) -> str:
        return subprocess.run([*self.before(space), *words], check=True, capture_output=True, text=True).stdout

    def _serve(self, space: str, port: int) -> subprocess.Popen[bytes]:
        program = (
            "import socket\n"
            f"s = socket.create_server(('::', {port}), family=socket.AF_INET6, dualstack_ipv6=True)\n"
            "print('up', flush=True)\n"
            "while True: s.accept()[0].close()"
        )
        server = subprocess.Popen([*self.before(space), sys.executable, "-S", "-c", program], stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        return server

    def reaches(self, space: str, address: str, port: int) -> bool:
        program = f"import socket; socket.create_connection(('{address}', {port}), 3)"
        command = [*self.before(space), sys.executable, "-S", "-c", program]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def gets_through(self, space: str, address: str, port: int) -> bool:
        """`reaches`, tried again for a minute; fails where it does not."""
        return bool(wait_until(lambda: self.reaches(space, address, port), f"{address} at {port} is reached"))

    def close(self) -> None:
        for server in self._servers:
            server.kill()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()
        for space in (self.inside, self.neighbor, self.node):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "delete", space)


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    net = Net()
    yield net
    net.close()


def plan_of(net: Net) -> Plan:
    return Plan(
        interfaces=(BRIDGE,),
        networks=("10.96.0.0/24",),
        allowed=(("10.96.0.1", HUB), ("10.96.0.2", HUB)),
        own=("10.96.0.1", "10.96.8.1"),
    )


def chains(net: Net) -> str:
    return net.run(net.node, "iptables", "-S")


def test_containers_reach_the_world_and_the_hub_and_nothing_else_of_the_site(net: Net) -> None:
    firewall = Firewall(net.before(net.node))
    forbidden = [
        ("10.96.0.1", OTHER),  # this machine's services
        ("10.96.8.1", OTHER),
        ("10.96.8.1", HUB),  # by another address than the one that was said
        ("10.96.0.2", OTHER),  # another machine
        ("169.254.169.254", HUB),  # a cloud's metadata
    ]
    assert all(net.gets_through(net.inside, *where) for where in forbidden)  # they would, without
    firewall.build(plan_of(net))
    assert [where for where in forbidden if net.reaches(net.inside, *where)] == []
    assert net.gets_through(net.inside, "10.96.0.1", HUB)
    assert net.gets_through(net.inside, "10.96.0.2", HUB)
    assert net.gets_through(net.inside, "203.0.113.7", OTHER)
    # What comes from outside to a container's published port, and its answers, pass; others are not held up.
    assert net.gets_through(net.neighbor, "10.96.8.2", OTHER)
    assert net.gets_through(net.neighbor, "10.96.0.1", OTHER)


def test_built_again_they_are_the_same_and_pulled_down_nothing_is_left(net: Net) -> None:
    firewall = Firewall(net.before(net.node))
    firewall.remove()
    before = chains(net)
    assert not firewall.exists()
    firewall.build(plan_of(net))
    built = chains(net)
    firewall.build(plan_of(net))
    assert chains(net) == built
    assert firewall.exists()
    # An admin put a rule before the agent's, which lets all through: the agent's rule is first again.
    net.run(net.node, "iptables", "-I", "DOCKER-USER", "-j", "ACCEPT")
    assert firewall.exists()
    assert not firewall.is_active()
    firewall.build(plan_of(net))
    assert firewall.is_active()
    assert not net.reaches(net.inside, "10.96.0.2", OTHER)
    net.run(net.node, "iptables", "-D", "DOCKER-USER", "-j", "ACCEPT")
    # The daemon created its chain again.
    net.run(net.node, "iptables", "-F", "DOCKER-USER")
    net.run(net.node, "iptables", "-A", "DOCKER-USER", "-j", "RETURN")
    assert not firewall.exists()
    firewall.build(plan_of(net))
    assert not net.reaches(net.inside, "10.96.0.2", OTHER)
    firewall.remove()
    firewall.remove()
    assert chains(net) == before
    assert FORWARD not in before
    assert INPUT not in before
    assert net.gets_through(net.inside, "10.96.0.2", OTHER)


def test_published_ports_take_connections_from_their_sources_only(net: Net) -> None:
    firewall = Firewall(net.before(net.node))
    # The container's port, and what Docker listens at for IPv6.
    published = [("10.96.8.2", OTHER), ("fd96::1", OTHER)]
    plan = replace(plan_of(net), published=(OTHER, OTHER))
    firewall.build(plan)  # the address of the control plane is not known yet
    assert all(net.gets_through(net.neighbor, *one) for one in published)
    firewall.build(replace(plan, sources=("10.96.0.7/32", "fd96::7/128")))
    assert [net.reaches(net.neighbor, *one) for one in published] == [False, False]
    assert net.gets_through(net.neighbor, "10.96.8.2", HUB), "the firewall guards no other ports"
    assert net.gets_through(net.node, "10.96.8.2", OTHER), "the control plane may be on this very node"
    assert net.gets_through(net.node, "fd96::1", OTHER)
    firewall.build(replace(plan, sources=("10.96.0.2/32", "fd96::/64")))
    assert all(net.gets_through(net.neighbor, *one) for one in published)
    firewall.remove()
    assert INPUT not in net.run(net.node, "ip6tables", "-S")
