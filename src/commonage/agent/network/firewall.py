"""The firewall around containers ("firewall"): keeps them from this node and its site, with two iptables chains.

Packets from a container's bridge may go out to the world, and to the addresses that the control plane says they need
(the hub, itself); not to this node's own services, not to other nodes of the site, not to a cloud's metadata address.
The ports that sessions and services publish accept connections only from the control plane, by IPv4 and IPv6. All rules
are rewritten at once, so that building them is idempotent.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commonage.ports.agents import CONTAINER_BRIDGE, NodeNetwork

_log = logging.getLogger(__name__)
FORWARD, INPUT = "COMMONAGE-FORWARD", "COMMONAGE-INPUT"
_CHAINS = (("iptables", FORWARD, "DOCKER-USER"), ("iptables", INPUT, "INPUT"))
# Docker also publishes ports by IPv6: its own process takes these connections, and passes them on by IPv4.
_CHAINS_IPV6 = (("ip6tables", INPUT, "INPUT"),)
_METADATA = "169.254.0.0/16"
_OURS = re.compile(r"(docker\d+|docker_gwbridge|br-[0-9a-f]{12}|veth.*|lo)$")
_WITHIN_S = 20.0

NO_NETWORK = NodeNetwork()
Network = ipaddress.IPv4Network


class FirewallError(Exception):
    """The firewall could not be built; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The input for the rules.

    `interfaces` are the containers' bridges; `networks` the site's; `reaches` the exceptions that may be reached, as
    (address, port); `servers` the name servers; `own` this node's addresses. Connections to `published` ports, from the
    first to the last, are accepted from `sources` (addresses or networks) only; without sources from everywhere,
    because the control plane's address is not known yet.
    """

    interfaces: tuple[str, ...]
    networks: tuple[str, ...] = ()
    reaches: tuple[tuple[str, int], ...] = ()
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
        lines += _gates(plan, interface)
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


def _gates(plan: Plan, interface: str) -> Iterable[str]:
    """The allowed destinations, for both chains: to the node itself, and through it."""
    named = [(server, protocol, 53) for server in plan.servers for protocol in ("udp", "tcp")]
    for address, protocol, port in [*((address, "tcp", port) for address, port in plan.reaches), *named]:
        chain = INPUT if address in plan.own else FORWARD
        yield f"-A {chain} -i {interface} -d {address} -p {protocol} --dport {port} -j RETURN"


def _forward(plan: Plan, interface: str) -> Iterable[str]:
    begin = f"-A {FORWARD} -i {interface}"
    for network in (_METADATA, *plan.networks):
        yield f"{begin} -d {network} -j REJECT"
    # Nor from one container to another on a bridge that all tenants share.
    yield f"{begin} -o {interface} -j REJECT"


class Firewall:
    """The firewall of this node. `before`: words before each command, to run it in another network namespace."""

    def __init__(self, before: Sequence[str] = ()) -> None:
        self._before = tuple(before)

    def build(self, plan: Plan) -> None:
        """Build the planned rules. Idempotent. Raises FirewallError."""
        self._run("iptables-restore", "--wait", "10", "--noflush", stdin=rules_of(plan))
        if self._has_ipv6():
            self._run("ip6tables-restore", "--wait", "10", "--noflush", stdin=rules_of_ipv6(plan))
        for program, chain, hook in self._chains():
            if not self._is(program, "-C", hook, "-j", chain):
                self._run(program, "--wait", "10", "-I", hook, "-j", chain)
            elif not self._is_first(program, hook, chain):
                self._run(program, "--wait", "10", "-D", hook, "-j", chain)
                self._run(program, "--wait", "10", "-I", hook, "-j", chain)

    def pull_down(self) -> None:
        """Remove all rules. Idempotent; missing rules are no error."""
        for program, chain, hook in self._chains():
            while self._is(program, "-D", hook, "-j", chain):
                pass
            if self._is(program, "-F", chain):
                self._is(program, "-X", chain)

    def stand(self) -> bool:
        """True if all chains exist and are used."""
        return all(self._is(program, "-C", hook, "-j", chain) for program, chain, hook in self._chains())

    def are_first(self) -> bool:
        """True if they exist, and no rule comes before them."""
        return self.stand() and all(self._is_first(program, hook, chain) for program, chain, hook in self._chains())

    def _chains(self) -> tuple[tuple[str, str, str], ...]:
        return _CHAINS + _CHAINS_IPV6 if self._has_ipv6() else _CHAINS

    def _has_ipv6(self) -> bool:
        """Whether this node has any IPv6 address."""
        try:
            return bool(self._run("cat", "/proc/net/if_inet6"))
        except FirewallError:  # the kernel has no IPv6
            return False

    def _is_first(self, program: str, hook: str, chain: str) -> bool:
        listed = self._run(program, "--wait", "10", "-S", hook).splitlines()
        return next((line for line in listed if line.startswith("-A")), "") == f"-A {hook} -j {chain}"

    def _is(self, program: str, *words: str) -> bool:
        try:
            self._run(program, "--wait", "10", *words)
        except FirewallError:
            return False
        return True

    def _run(self, *words: str, stdin: str = "") -> str:
        try:
            ended = subprocess.run(
                [*self._before, *words], input=stdin, capture_output=True, text=True, timeout=_WITHIN_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FirewallError(f"{words[0]} cannot be run: {error}") from error
        if ended.returncode != 0:
            raise FirewallError(f"{' '.join(words)}: {ended.stderr.strip()[:300]}")
        return ended.stdout


def plan_for(
    interfaces: Collection[str],
    networks: Collection[str],
    reaches: Collection[str],
    network: NodeNetwork = NO_NETWORK,
    *,
    proc: Path = Path("/proc"),
) -> Plan:
    """The plan for this node: its own networks and name servers are looked up. Raises OSError, ValueError."""
    found = [str(one) for one in site_networks(proc / "net/route")]
    named = [str(Network(one)) for one in networks]
    parts = [
        (str(ipaddress.IPv4Address(host)), int(port)) for host, _, port in (one.rpartition(":") for one in reaches)
    ]
    return Plan(
        interfaces=tuple(interfaces),
        networks=tuple(dict.fromkeys([*found, *named])),
        reaches=tuple(parts),
        servers=tuple(name_servers()),
        own=tuple(own_addresses(proc / "net/fib_trie")),
        published=network.published_ports,
        sources=tuple(str(ipaddress.ip_network(one)) for one in network.sources),
    )


def site_networks(table: Path = Path("/proc/net/route")) -> list[Network]:
    """The networks to which this node has a direct route; not the default route, not those of containers."""
    found = []
    for line in table.read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
        if mask and not _OURS.match(fields[0]):
            found.append(Network((destination, mask.bit_count())))
    return found


def own_addresses(trie: Path = Path("/proc/net/fib_trie")) -> list[str]:
    """The IPv4 addresses of this node: the leaves that the kernel lists as local."""
    found, last = [], ""
    for line in trie.read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            last = words[1]
        elif words[:2] == ["/32", "host"] and words[2:] == ["LOCAL"]:
            found.append(last)
    return sorted(set(found))


def name_servers(file: Path = Path("/etc/resolv.conf")) -> list[str]:
    """The IPv4 name servers that containers use, without those on the loopback, which they cannot reach."""
    found = []
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
                found.append(str(address))
    return found
