"""Tenants' networks on one node: a bridge each. Docker passes no packet between two bridges. Used by the launcher."""

from __future__ import annotations

from ipaddress import ip_address

from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.daemon.networks import Network, TenantNetworks
from commonage.engines.containers.daemon.relays import Relays
from commonage.engines.docker.client import Client
from commonage.engines.docker.translate import network_config


class Networks(TenantNetworks):
    """Bridges, with access to the hub and the control plane at the gateway of each."""

    def __init__(self, client: Client, installation: str, addresses: str, relays: Relays) -> None:
        super().__init__(client, installation, addresses)
        self._relays = relays

    def _config(self, tenant: str, subnet: str) -> Json:
        return network_config(self._installation, tenant, subnet)

    async def _on_added(self, network: Network) -> None:
        # The node also forwards packets for this address from its other networks: only the tenant's own may connect.
        subnet = network.subnet
        await self._relays.open_at(network.gateway, lambda peer: subnet is not None and ip_address(peer) in subnet)

    def _on_removed(self, network: Network) -> None:
        self._relays.close_at(network.gateway)
