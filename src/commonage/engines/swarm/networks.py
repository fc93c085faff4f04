"""Tenants' networks over all nodes: an overlay each. No packet passes between two of them. Used by the launcher."""

from __future__ import annotations

from ipaddress import IPv4Network

from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.daemon.networks import TenantNetworks
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.settings import SwarmSettings
from commonage.engines.swarm.translate import network_config


class Networks(TenantNetworks):
    """Overlays. `address` is this node's, by which containers of all nodes reach it."""

    # Each node also has an address in each.
    _prefix = 22
    _setting = "swarm_networks"

    def __init__(self, client: Client, installation: str, settings: SwarmSettings, address: str) -> None:
        super().__init__(client, installation, settings.networks)
        self._swarm = client
        self._encrypted = settings.encrypted
        self._address = address

    def _config(self, tenant: str, subnet: str) -> Json:
        return network_config(self._installation, tenant, subnet, encrypted=self._encrypted)

    def _gateway(self, found: Json) -> str:
        return self._address

    def _subnet(self, found: Json) -> IPv4Network | None:
        """Containers reach this node by their own node's address; and Swarm assigns a new network's own range later."""
        return None

    async def _taken(self) -> list[IPv4Network]:
        """Swarm accepts any range, and with overlapping networks its tasks wait forever."""
        taken = await super()._taken()
        for network in await self._swarm.overlays():
            for part in (network.get("IPAM") or {}).get("Config") or ():
                if part.get("Subnet") and ":" not in part["Subnet"]:
                    taken.append(IPv4Network(part["Subnet"], strict=False))
        return taken
