"""Enforces memory if the kernel does not, and removes old logs.

Tasks of the engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from commonage.domain.iterations import Iterations
from commonage.engines.process.groups.groups import Groups
from commonage.engines.process.run import Run, Table
from commonage.engines.process.settings import ProcessSettings
from commonage.engines.rundir.runs import Runs
from commonage.engines.rundir.table import InThread

PAUSE_S = 5.0
OLD_LOGS_PAUSE_S = 600.0
_log = logging.getLogger(__name__)


async def enforce_memory(table: Table, groups: Groups, in_thread: InThread, iterations: Iterations) -> None:
    while True:
        with iterations.rest():
            await asyncio.sleep(PAUSE_S)
        for run in table:
            if run.is_running:
                try:
                    await in_thread(partial(_enforce, run, groups))
                except OSError as error:
                    _log.warning("cannot look after %s: %s", run.id, error)


async def remove_old_logs(files: Runs, settings: ProcessSettings, in_thread: InThread, iterations: Iterations) -> None:
    """Remove old logs now and every ten minutes, forever."""
    while True:
        try:
            clear = partial(files.clear_old, time.time(), settings.keep_logs_days, settings.keep_logs_mib)
            removed = await in_thread(clear)
            if removed:
                _log.info("removed the logs of %d attempts of long ago", removed)
        except OSError as error:
            _log.warning("cannot remove logs of long ago: %s", error)
        with iterations.rest():
            await asyncio.sleep(OLD_LOGS_PAUSE_S)


def _enforce(run: Run, groups: Groups) -> None:
    use = None if groups.limits_memory else groups.use(run.id)
    if use is not None and use.memory_mib > run.request.allocation.memory_mib:
        run.over_memory = True
        groups.kill(run.id)
