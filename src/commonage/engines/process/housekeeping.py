"""What is looked after every few seconds: logs stay within bounds, and memory does where the kernel does not see to it.

A task of the engine's.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from commonage.engines.process.board import Board, InThread, Run
from commonage.engines.process.groups import Groups
from commonage.engines.process.logs import limit_log

PAUSE_S = 5.0
_log = logging.getLogger(__name__)


async def keep_house(board: Board, groups: Groups, log_keep_mib: int, in_thread: InThread) -> None:
    """Look after each running attempt, for ever."""
    while True:
        await asyncio.sleep(PAUSE_S)
        for run in board:
            if run.is_running:
                try:
                    await in_thread(partial(_hold, run, groups, log_keep_mib))
                except OSError as error:
                    _log.warning("cannot look after %s: %s", run.id, error)


def _hold(run: Run, groups: Groups, log_keep_mib: int) -> None:
    limit_log(run.folder.log, log_keep_mib)
    use = None if groups.limits_memory else groups.use(run.id)
    if use is not None and use.memory_mib > run.order.lease.memory_mib:
        run.over_memory = True
        groups.kill(run.id)
