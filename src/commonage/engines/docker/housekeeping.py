"""Containers and networks of ours that nobody needs any more are removed; nothing else is."""

from __future__ import annotations

import logging

from commonage.engines.containers.board import Board
from commonage.engines.containers.housekeeping import House
from commonage.engines.docker.client import Client
from commonage.engines.docker.networks import Networks
from commonage.engines.dockerd.words import LABEL, ours

_log = logging.getLogger(__name__)


class Leftovers:
    """What is at the daemon and not on the board."""

    def __init__(self, board: Board, client: Client, networks: Networks, installation: str) -> None:
        self._board = board
        self._client = client
        self._networks = networks
        self._installation = installation

    async def clear(self, house: House) -> None:
        """Remove it. Raises EngineFailure."""
        await self.clear_containers()
        await self._networks.clear_unused(house.uses)

    async def clear_containers(self) -> int:
        """Remove containers of ours whose attempt is forgotten or was never written down; gives how many.

        Such ones are left by a crash between two steps. Raises EngineFailure.
        """
        removed = 0
        for container, labels in (await self._client.containers(ours(self._installation))).items():
            attempt = labels.get(f"{LABEL}.attempt", "")
            if attempt not in self._board.runs:
                _log.warning("removing a container of %s, which is not known any more", attempt)
                await self._client.remove(container)
                removed += 1
        return removed
