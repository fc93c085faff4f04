"""In-memory state of the process engine's attempts; ends them, and enforces memory if the kernel does not."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from commonage.domain.iterations import Iterations
from commonage.engines.process.groups.groups import Groups
from commonage.engines.process.processes import send
from commonage.engines.rundir.run import EngineRun, RunTable
from commonage.engines.rundir.tasks import InThread

MEMORY_PAUSE_S = 5.0
_POLL_S = 0.05
_FORCE_SHIM_AFTER_S = 3.0
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Run(EngineRun):
    """`begun` is done once the shim is started, too. `pidfd` watches the shim, `pid`, while that lives."""

    preparing: asyncio.Task[None] | None = None
    pidfd: int | None = None
    over_memory: bool = False


Table: TypeAlias = RunTable[Run]


async def end_run(run: Run, groups: Groups, in_thread: InThread) -> None:
    """Send SIGTERM to all but the shim, and SIGKILL from `run.kill_at` on (which may move closer), until it ended."""
    now = asyncio.get_running_loop().time
    asked = False
    while not run.ended.is_set() and now() < run.kill_at:
        # Sent only once: a process that starts after that may be part of an orderly end. But a shim that has just begun
        # has no process to signal yet.
        if not asked:
            pids = await in_thread(lambda: groups.pids(run.id))
            send(pids, signal.SIGTERM)
            asked = bool(pids)
        await run.wait_for_end(min(_POLL_S, run.kill_at - now()))
    forced_at = now()
    while not run.ended.is_set():
        await in_thread(lambda: groups.kill(run.id))
        if now() - forced_at > _FORCE_SHIM_AFTER_S and run.pid is not None:
            # It was stopped (SIGSTOP) or cannot write: killing it loses the exit code, but frees the slot.
            send([run.pid], signal.SIGKILL)
        await run.wait_for_end(_POLL_S)


async def enforce_memory(table: Table, groups: Groups, in_thread: InThread, iterations: Iterations) -> None:
    while True:
        with iterations.rest():
            await asyncio.sleep(MEMORY_PAUSE_S)
        for run in table:
            if run.is_running:
                try:
                    await in_thread(partial(_enforce_memory, run, groups))
                except OSError as error:
                    _log.warning("cannot look after %s: %s", run.id, error)


def _enforce_memory(run: Run, groups: Groups) -> None:
    use = None if groups.limits_memory else groups.use(run.id)
    if use is not None and use.memory_mib > run.request.allocation.memory_mib:
        run.over_memory = True
        groups.kill(run.id)
