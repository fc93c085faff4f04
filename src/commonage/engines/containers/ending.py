"""Ends a running attempt: a request first, then SIGKILL, until its end is seen. Called by the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.container_client import ContainerClient, Signal
from commonage.engines.containers.run import Run

_LOOK_S = 0.25
_AGAIN_S = 2.0
_log = logging.getLogger(__name__)


async def end_run(run: Run, container_client: ContainerClient, settle: Callable[[Run], Awaitable[None]]) -> None:
    """Send SIGTERM to its program, and SIGKILL from `run.kill_at` on (which may move closer), until it ended."""
    now = asyncio.get_running_loop().time
    asked = False
    while not run.ended.is_set() and now() < run.kill_at:
        asked = asked or await _sent(run, container_client, "SIGTERM")
        await _wait(run, min(_LOOK_S, run.kill_at - now()))
    while not run.ended.is_set():
        await _sent(run, container_client, "SIGKILL")
        await _wait(run, _AGAIN_S)
        if not run.ended.is_set():  # the event of its end may have been lost
            await settle(run)


async def _sent(run: Run, container_client: ContainerClient, signal: Signal) -> bool:
    try:
        await container_client.signal(run, signal)
    except EngineFailure as error:
        _log.warning("cannot send %s to %s, will try again: %s", signal, run.id, error)
        return False
    return True


async def _wait(run: Run, seconds: float) -> None:
    try:
        await asyncio.wait_for(run.ended.wait(), max(seconds, 0.001))
    except TimeoutError:
        return
