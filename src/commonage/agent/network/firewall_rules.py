"""The firewall rules of a node, as input of `iptables-restore`: pure functions of a plan, and the facts in that plan.

Packets from a container's bridge may go to the internet, and to the addresses that the control plane allows (the hub,
the control plane itself). They may not go to this node's own services, to other nodes of the site, or to a cloud's
metadata address. The ports that sessions and services publish accept connections only from the control plane.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from commonage.ports.agents import CONTAINER_BRIDGE, NodeNetwork

FORWARD, INPUT = "COMMONAGE-FORWARD", "COMMONAGE-INPUT"
_METADATA = "169.254.0.0/16"
_CONTAINER_INTERFACES = re.compile(r"(docker\d+|docker_gwbridge|br-[0-9a-f]{12}|veth.*|lo)$")

Network = ipaddress.IPv4Network


@dataclass(frozen=True, slots=True)
class Plan:
    """The input for the rules.

    `interfaces` are the containers' bridges; `networks` the site's; `allowed` the exceptions that may be reached, as
    (address, port); `servers` the name servers; `own` this node's addresses. Connections to `published` ports, from the
    first to the last, are accepted from `sources` (addresses or networks) only; without sources from everywhere,
    because the control plane's address is not known yet.
    """

    interfaces: tuple[str, ...]
    networks: tuple[str, ...] = ()
    allowed: tuple[tuple[str, int], ...] = ()
    servers: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    published: tuple[int, int] = (0, 0)
    sources: tuple[str, ...] = ()


def rules_of(plan: Plan) -> str:
    """The input of `iptables-restore --noflush`: both chains, complete. Pure."""
    lines = ["*filter", f":{FORWARD} - [0:0]", f":{INPUT} - [0:0]"]
    for chain in (FORWARD, INPUT):
        lines.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN")
    lines += _published(plan, f"-A {FORWARD} -o {CONTAINER_BRIDGE}", version=4)
    for interface in plan.interfaces:
        lines += _allowed(plan, interface)
        lines += _forward(plan, interface)
        lines.append(f"-A {INPUT} -i {interface} -j REJECT")
    return "\n".join([*lines, "COMMIT", ""])


def rules_of_ipv6(plan: Plan) -> str:
    """The input of `ip6tables-restore --noflush`. Pure."""
    begin = f"-A {INPUT}"
    lines = ["*filter", f":{INPUT} - [0:0]", f"{begin} -i lo -j RETURN"]
    lines.append(f"{begin} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN")
    return "\n".join([*lines, *_published(plan, begin, version=6), "COMMIT", ""])


def _published(plan: Plan, begin: str, version: int) -> Iterable[str]:
    """The rules for sources that may connect to published ports.

    A port is the same on the node and in its container.
    """
    if plan.sources:
        first, last = plan.published
        ports = f"-p tcp --dport {first}:{last}"
        for source in plan.sources:
            if ipaddress.ip_network(source).version == version:
                yield f"{begin} -s {source} {ports} -j RETURN"
        yield f"{begin} {ports} -j REJECT"


def _allowed(plan: Plan, interface: str) -> Iterable[str]:
    """The allowed destinations, for both chains: to the node itself, and through it."""
    named = [(server, protocol, 53) for server in plan.servers for protocol in ("udp", "tcp")]
    for address, protocol, port in [*((address, "tcp", port) for address, port in plan.allowed), *named]:
        chain = INPUT if address in plan.own else FORWARD
        yield f"-A {chain} -i {interface} -d {address} -p {protocol} --dport {port} -j RETURN"


def _forward(plan: Plan, interface: str) -> Iterable[str]:
    begin = f"-A {FORWARD} -i {interface}"
    for network in (_METADATA, *plan.networks):
        yield f"{begin} -d {network} -j REJECT"
    # Nor from one container to another on a bridge that all tenants share.
    yield f"{begin} -o {interface} -j REJECT"


def plan_for(
    interfaces: Collection[str],
    networks: Collection[str],
    allowed: Collection[str],
    network: NodeNetwork,
    *,
    proc: Path = Path("/proc"),
) -> Plan:
    """The plan for this node: its own networks and name servers are looked up. Raises OSError, ValueError."""
    routed = [str(one) for one in site_networks(proc / "net/route")]
    named = [str(Network(one)) for one in networks]
    parts = [
        (str(ipaddress.IPv4Address(host)), int(port)) for host, _, port in (one.rpartition(":") for one in allowed)
    ]
    return Plan(
        interfaces=tuple(interfaces),
        networks=tuple(dict.fromkeys([*routed, *named])),
        allowed=tuple(parts),
        servers=tuple(name_servers()),
        own=tuple(own_addresses(proc / "net/fib_trie")),
        published=network.published_ports,
        sources=tuple(str(ipaddress.ip_network(one)) for one in network.sources),
    )


def site_networks(table: Path = Path("/proc/net/route")) -> list[Network]:
    """The networks to which this node has a direct route; not the default route, not those of containers."""
    networks = []
    for line in table.read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
        if mask and not _CONTAINER_INTERFACES.match(fields[0]):
            networks.append(Network((destination, mask.bit_count())))
    return networks


def own_addresses(trie: Path = Path("/proc/net/fib_trie")) -> list[str]:
    """The IPv4 addresses of this node: the leaves that the kernel lists as local."""
    addresses, last = [], ""
    for line in trie.read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            last = words[1]
        elif words[:2] == ["/32", "host"] and words[2:] == ["LOCAL"]:
            addresses.append(last)
    return sorted(set(addresses))


def name_servers(file: Path = Path("/etc/resolv.conf")) -> list[str]:
    """The IPv4 name servers that containers use, without those on the loopback, which they cannot reach."""
    servers = []
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for words in (line.split() for line in lines):
        if words[:1] == ["nameserver"] and len(words) > 1:
            try:
                address = ipaddress.IPv4Address(words[1])
            except ValueError:
                continue
            if not address.is_loopback:
                servers.append(str(address))
    return servers
