"""The tenants' networks: one bridge each, made when it is first needed, removed when nothing uses it."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.addresses import networks_here
from commonage.engines.docker.client import Client, Json, Refused
from commonage.engines.docker.relays import Relays
from commonage.engines.docker.translate import LABEL, network_config, ours

# Some five hundred containers of each tenant.
_PREFIX = 23


@dataclass(frozen=True, slots=True)
class Network:
    """A tenant's network; `gateway` is this machine's address in it."""

    id: str
    name: str
    gateway: str


class Networks:
    """Those of one installation; `addresses` is the range that they are cut from, like 10.213.0.0/16."""

    def __init__(self, client: Client, installation: str, addresses: str, relays: Relays) -> None:
        self._client = client
        self._installation = installation
        self._range = addresses
        self._relays = relays
        self._known: dict[str, Network] = {}
        # Docker takes two networks of one name, so that only one of us may make one at a time.
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def open(self) -> None:
        """Take up those that are there. Raises EngineFailure."""
        for found in await self._client.networks(ours(self._installation)):
            await self._note(found)

    async def of(self, tenant: str) -> Network:
        """The tenant's network, made if need be. Raises EngineFailure."""
        async with self._making[tenant]:
            if tenant not in self._known:
                await self._note(await self._make(tenant))
            return self._known[tenant]

    async def _make(self, tenant: str) -> Json:
        """Docker's own ranges are used up by some thirty networks, so we take the next free part of ours."""
        taken = await asyncio.to_thread(networks_here)  # Docker itself only looks at its own
        for subnet in (str(part) for part in self._parts() if not any(part.overlaps(one) for one in taken)):
            try:
                network = await self._client.create_network(network_config(self._installation, tenant, subnet))
            except Refused as error:
                if "overlaps" in error.message:
                    continue
                raise
            made = await self._client.network(network)
            if made is None:
                raise EngineFailure(f"the network of {tenant} was removed while it was made", retryable=True)
            return made
        raise EngineFailure(
            f"all addresses of {self._range} are taken by networks: widen docker_networks in the settings",
            retryable=True,
        )

    def _parts(self) -> list[ipaddress.IPv4Network]:
        """All parts of our range, each installation from another one on: two on one machine may choose at once."""
        parts = list(ipaddress.IPv4Network(self._range).subnets(new_prefix=_PREFIX))
        first = int(self._installation, 16) % len(parts)
        return parts[first:] + parts[:first]

    async def _note(self, found: Json) -> None:
        tenant = str((found["Labels"] or {}).get(f"{LABEL}.tenant", ""))
        if tenant and tenant not in self._known:
            network = Network(str(found["Id"]), str(found["Name"]), _gateway(found))
            await self._relays.open_at(network.gateway)
            self._known[tenant] = network

    async def look_again(self) -> None:
        """After the daemon was away: networks may be gone, and addresses may have come back. Raises EngineFailure."""
        there = {str(found["Id"]) for found in await self._client.networks(ours(self._installation))}
        for tenant, network in list(self._known.items()):
            if network.id not in there:
                self._drop(tenant)
            else:
                await self._relays.open_at(network.gateway)

    def forget(self, tenant: str) -> None:
        """It is said to be gone: make it anew when it is next needed."""
        self._drop(tenant)

    def _drop(self, tenant: str) -> None:
        network = self._known.pop(tenant, None)
        if network is not None:
            self._relays.close_at(network.gateway)

    async def clear_unused(self, is_used: Callable[[str], bool]) -> int:
        """Remove the networks of tenants that run nothing; gives how many. Raises EngineFailure.

        Asked anew for each, while nobody can get it: who is about to start something there is known before.
        """
        removed = 0
        for found in await self._client.networks(ours(self._installation)):
            tenant = str((found["Labels"] or {}).get(f"{LABEL}.tenant", ""))
            async with self._making[tenant]:
                if not is_used(tenant) and await self._client.remove_network(str(found["Id"])):
                    self._drop(tenant)
                    removed += 1
        return removed


def _gateway(found: Json) -> str:
    configs: list[dict[str, Any]] = found["IPAM"]["Config"] or []
    for config in configs:
        if ":" not in config["Subnet"]:
            subnet = ipaddress.ip_network(config["Subnet"])
            return str(config.get("Gateway") or next(subnet.hosts())).partition("/")[0]
    raise EngineFailure(f"the network {found['Name']} has no IPv4 address")
