"""What is looked after: logs stay within bounds, and what nobody needs any more is removed. Only ever what is ours.

Tasks of the engine's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from commonage.domain.errors import EngineFailure
from commonage.engines.common.board import InThread
from commonage.engines.common.logs import limit_log
from commonage.engines.common.runs import Runs
from commonage.engines.containers.board import Board
from commonage.engines.docker.client import Client
from commonage.engines.docker.launcher import Place
from commonage.engines.docker.networks import Networks
from commonage.engines.docker.translate import LABEL, ours

LOGS_PAUSE_S = 5.0
CLEAN_PAUSE_S = 600.0
_log = logging.getLogger(__name__)


class House:
    """What the engine keeps, on disk and at the daemon."""

    def __init__(self, board: Board, files: Runs, client: Client, networks: Networks, place: Place) -> None:
        self._board = board
        self._files = files
        self._client = client
        self._networks = networks
        self._settings = place.settings
        self._installation = place.installation

    async def keep_logs_short(self, in_thread: InThread) -> None:
        """Hold the log of each running attempt within bounds, for ever."""
        while True:
            await asyncio.sleep(LOGS_PAUSE_S)
            for run in self._board:
                if run.is_running:
                    try:
                        await in_thread(partial(limit_log, run.folder.log, self._settings.log_keep_mib))
                    except OSError as error:
                        _log.warning("cannot look after the log of %s: %s", run.id, error)

    async def keep_clean(self, in_thread: InThread) -> None:
        """Remove what is left over now and every few minutes, for ever."""
        while True:
            try:
                await self.clear_containers()
                await self._networks.clear_unused(self._is_used)
                days, mib = self._settings.keep_logs_days, self._settings.keep_logs_mib
                await in_thread(partial(self._files.clear_old, time.time(), days, mib))
            except (EngineFailure, OSError) as error:
                _log.warning("cannot clean up: %s", error)
            await asyncio.sleep(CLEAN_PAUSE_S)

    def _is_used(self, tenant: str) -> bool:
        return any(run.order.tenant == tenant for run in self._board)

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
