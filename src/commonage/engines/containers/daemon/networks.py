"""Tenants' networks: one each, created when it is first needed, removed when unused. Base of the engines' networks.

Also the relays by which containers reach the hub and the control plane, which listen on this node's loopback only. At
an address that containers reach, the relays listen on the ports of the hub and the control plane. Every connection
leads to the workload gateway (`server.web.workload_gateway`), which serves the API of both and nothing else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from socket import AddressFamily
from typing import Any

import psutil

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.daemon.connection import Connection, DaemonRefused, Json
from commonage.engines.containers.daemon.descriptions import LABEL, installation_filter
from commonage.link.forwarding import CHUNK, MAX_PER_PEER, Admits, Forwarder, Streams


@dataclass(frozen=True, slots=True)
class Network:
    """A tenant's network; `gateway` is the address by which its containers reach this node.

    `subnet` is the range of source addresses that connect to the gateway.
    """

    id: str
    name: str
    gateway: str
    subnet: ipaddress.IPv4Network | None = None


class TenantNetworks:
    """Networks of one installation; `addresses` is the range that they are cut from, like 10.213.0.0/16.

    Subclasses define a network (`_config`), and may act when one is created or removed.
    """

    _prefix = 23
    """Prefix length of each network: about five hundred addresses."""
    _setting = "docker_networks"
    """Setting of the range, as text for an admin."""

    def __init__(self, client: Connection, installation: str, addresses: str) -> None:
        self._client = client
        self._installation = installation
        self._range = addresses
        self._known: dict[str, Network] = {}
        # Each installation begins with another part: two on one node may choose at the same time.
        self._next_part = int(installation, 16)
        # Docker accepts two networks of one name, so only one task may create one at a time.
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def _config(self, tenant: str, subnet: str) -> Json:
        raise NotImplementedError

    def _gateway(self, found: Json) -> str:
        """Address by which its containers reach this node. Raises EngineFailure."""
        return gateway_of(found)

    def _subnet(self, found: Json) -> ipaddress.IPv4Network | None:
        """Source addresses of its containers when they reach this node. Raises EngineFailure."""
        return subnet_of(found)

    async def _taken(self) -> list[ipaddress.IPv4Network]:
        """Ranges that our networks must not overlap. The daemon itself only checks its own."""
        return await asyncio.to_thread(networks_here)

    async def _on_added(self, network: Network) -> None: ...

    def _on_removed(self, network: Network) -> None: ...

    async def open(self) -> None:
        """Take over existing networks. Raises EngineFailure."""
        for found in await self._client.networks(installation_filter(self._installation)):
            await self._note(found)

    async def of(self, tenant: str) -> Network:
        """Return the tenant's network, creating it if needed. Raises EngineFailure."""
        async with self._making[tenant]:
            if tenant not in self._known:
                await self._note(await self._make(tenant))
            return self._known[tenant]

    async def _make(self, tenant: str) -> Json:
        """Docker's own ranges are used up by some thirty networks, so this takes the next free part of the configured
        range.
        """
        taken, parts = await self._taken(), self._parts()
        for subnet in (part for part in parts if not any(part.overlaps(one) for one in taken)):
            try:
                network = await self._client.create_network(self._config(tenant, str(subnet)))
            except DaemonRefused as error:
                if "overlaps" in str(error):
                    continue
                # It may be ours: created a moment ago by a request whose response was lost.
                if "already exists" in str(error) and (known := await self._of_ours(tenant)) is not None:
                    return known
                raise
            self._next_part += 1 + parts.index(subnet)
            made = await self._client.network(network)
            if made is None:
                raise EngineFailure(f"the network of {tenant} was removed while it was made", retryable=True)
            return made
        raise EngineFailure(
            f"all addresses of {self._range} are taken by networks: widen {self._setting} in the settings",
            retryable=True,
        )

    async def _of_ours(self, tenant: str) -> Json | None:
        found = await self._client.networks(installation_filter(self._installation))
        return next((one for one in found if _tenant_of(one) == tenant), None)

    def _parts(self) -> list[ipaddress.IPv4Network]:
        """All parts of the range, starting after the last used one.

        A node of a Swarm removes a network some time after the manager, and refuses another with the same addresses
        until then.
        """
        parts = list(ipaddress.IPv4Network(self._range).subnets(new_prefix=self._prefix))
        first = self._next_part % len(parts)
        return parts[first:] + parts[:first]

    async def _note(self, found: Json) -> None:
        tenant = _tenant_of(found)
        if tenant and tenant not in self._known:
            network = Network(str(found["Id"]), str(found["Name"]), self._gateway(found), self._subnet(found))
            await self._on_added(network)
            self._known[tenant] = network

    async def refresh(self) -> None:
        """Check again after the daemon was down: networks may be gone, addresses may have returned.

        Raises EngineFailure.
        """
        there = {str(found["Id"]) for found in await self._client.networks(installation_filter(self._installation))}
        for tenant, network in list(self._known.items()):
            if network.id not in there:
                self.forget(tenant)
            else:
                await self._on_added(network)

    def forget(self, tenant: str) -> None:
        """Forget a network that no longer exists: it is created again when it is next needed."""
        network = self._known.pop(tenant, None)
        if network is not None:
            self._on_removed(network)

    async def clear_unused(self, is_used: Callable[[str], bool]) -> int:
        """Remove the networks of tenants that run nothing; return their number. Raises EngineFailure.

        Use is checked again for each, under the lock that hands networks out: an attempt about to start is known before
        it asks for its network.
        """
        removed = 0
        for found in await self._client.networks(installation_filter(self._installation)):
            tenant = _tenant_of(found)
            async with self._making[tenant]:
                if not is_used(tenant) and await self._client.remove_network(str(found["Id"])):
                    self.forget(tenant)
                    removed += 1
        return removed


def _tenant_of(found: Json) -> str:
    return str((found["Labels"] or {}).get(f"{LABEL}.tenant", ""))


def gateway_of(found: Json) -> str:
    """The network's own gateway, or its first address. Raises EngineFailure."""
    gateway = _ipv4_config(found).get("Gateway")
    return str(gateway or next(subnet_of(found).hosts())).partition("/")[0]


def subnet_of(found: Json) -> ipaddress.IPv4Network:
    """The IPv4 addresses of a network. Raises EngineFailure."""
    return ipaddress.IPv4Network(_ipv4_config(found)["Subnet"], strict=False)


def _ipv4_config(found: Json) -> dict[str, Any]:
    configs: list[dict[str, Any]] = found["IPAM"]["Config"] or []
    for config in configs:
        if ":" not in config["Subnet"]:
            return config
    raise EngineFailure(f"the network {found['Name']} has no IPv4 address")


_OF_CONTAINERS = re.compile(r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}|veth.*|lo")


def addresses_here() -> list[str]:
    """IP addresses that others can reach: none of the loopback, of bridges, or of point-to-point links."""
    found = []
    for interface, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family in (AddressFamily.AF_INET, AddressFamily.AF_INET6) and not _OF_CONTAINERS.fullmatch(
                interface
            ):
                address = ip_address(one.address.partition("%")[0])
                if not address.is_link_local and not address.is_loopback:
                    found.append(str(address))
    return found


def network_at(interface: str) -> IPv4Network | None:
    """The IPv4 network of this interface; None if it has none, or does not exist."""
    for one in psutil.net_if_addrs().get(interface, ()):
        if one.family is AddressFamily.AF_INET and one.netmask:
            return IPv4Network((one.address, one.netmask), strict=False)
    return None


def networks_here(table: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """IPv4 networks that this computer has an address in or a route to; default routes are excluded."""
    found = []
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family is AddressFamily.AF_INET and one.netmask:
                found.append(IPv4Network((one.address, one.netmask), strict=False))
    for line in table.read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
        if mask:
            found.append(IPv4Network((destination, mask.bit_count())))
    return found


_log = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"


class Relays:
    """The relays of all networks. Containers connect to `ports`; `gateway_port` is the workload gateway's.

    Each address may have at most `max_per_peer` open connections. One that is not admitted yet has `admission_s`
    seconds to become so.
    """

    def __init__(
        self, ports: Collection[int], gateway_port: int, max_per_peer: int = MAX_PER_PEER, admission_s: float = 0.0
    ) -> None:
        self._ports = tuple(ports)
        self._gateway_port = gateway_port
        self._forwarder = Forwarder(
            "relay for containers", self._open_gateway, max_per_peer=max_per_peer, admission_s=admission_s
        )

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
