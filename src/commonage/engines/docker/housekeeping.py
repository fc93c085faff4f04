"""Removes unused containers and networks of this installation, and nothing else. Used by the engine."""

from __future__ import annotations

import logging

from commonage.engines.containers.daemon.descriptions import LABEL, ours
from commonage.engines.containers.housekeeping import House
from commonage.engines.containers.run import Table
from commonage.engines.docker.client import Client
from commonage.engines.docker.networks import Networks

_log = logging.getLogger(__name__)


class Leftovers:
    """Objects at the daemon that are not on the live state."""

    def __init__(self, table: Table, client: Client, networks: Networks, installation: str) -> None:
        self._table = table
        self._client = client
        self._networks = networks
        self._installation = installation

    async def clear(self, house: House) -> None:
        """Remove them. Raises EngineFailure."""
        await self.clear_containers()
        await self._networks.clear_unused(house.uses)

    async def clear_containers(self) -> int:
        """Remove our containers whose attempt is forgotten or was never written to disk; return their number.

        A crash between two steps leaves such containers. Raises EngineFailure.
        """
        removed = 0
        for container, labels in (await self._client.containers(ours(self._installation))).items():
            attempt = labels.get(f"{LABEL}.attempt", "")
            if attempt not in self._table.runs:
                _log.warning("removing a container of %s, which is not known any more", attempt)
                await self._client.remove(container)
                removed += 1
        return removed
