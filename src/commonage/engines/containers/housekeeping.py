"""Removes what is no longer needed, and only what belongs to this installation. Tasks of an engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from commonage.domain.errors import EngineFailure
from commonage.domain.iterations import Iterations
from commonage.engines.containers.run import Table
from commonage.engines.rundir.runs import Runs
from commonage.engines.rundir.table import InThread

CLEAN_PAUSE_S = 600.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogRetention:
    """Retention of old logs in days, and their total size in MiB."""

    keep_logs_days: int
    keep_logs_mib: int


class Housekeeper:
    """What an engine keeps on disk, and, by `clear`, at its daemons."""

    def __init__(self, table: Table, files: Runs, retention: LogRetention, in_thread: InThread) -> None:
        self._table = table
        self._files = files
        self._retention = retention
        self._in_thread = in_thread

    async def keep_clean(self, clear: Callable[[], Awaitable[None]], iterations: Iterations) -> None:
        """Remove leftovers now and every few minutes, forever."""
        while True:
            try:
                await clear()
                days, mib = self._retention.keep_logs_days, self._retention.keep_logs_mib
                await self._in_thread(partial(self._files.clear_old, time.time(), days, mib))
            except (EngineFailure, OSError) as error:
                _log.warning("cannot clean up: %s", error)
            with iterations.rest():
                await asyncio.sleep(CLEAN_PAUSE_S)

    def has_runs_of(self, tenant: str) -> bool:
        return any(run.request.tenant == tenant for run in self._table)
