"""Ends a running attempt.

A request first, then SIGKILL, until none of its processes is left. Called by the engine.
"""

from __future__ import annotations

import asyncio
import signal

from commonage.engines.process.groups.groups import Groups
from commonage.engines.process.processes import send
from commonage.engines.process.run import Run
from commonage.engines.rundir.table import InThread

_LOOK_S = 0.05
_FORCE_SHIM_AFTER_S = 3.0


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
        await _wait(run, min(_LOOK_S, run.kill_at - now()))
    forced_at = now()
    while not run.ended.is_set():
        await in_thread(lambda: groups.kill(run.id))
        if now() - forced_at > _FORCE_SHIM_AFTER_S and run.pid is not None:
            # It was stopped (SIGSTOP) or cannot write: killing it loses the exit code, but frees the slot.
            send([run.pid], signal.SIGKILL)
        await _wait(run, _LOOK_S)


async def _wait(run: Run, seconds: float) -> None:
    try:
        await asyncio.wait_for(run.ended.wait(), max(seconds, 0.001))
    except TimeoutError:
        return
