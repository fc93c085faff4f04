"""Starts a container with retries, and ends one: SIGTERM, then SIGKILL. Called by the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from commonage.domain.errors import EngineFailure, start_failure
from commonage.domain.reasons.attempts import RetryingStart
from commonage.engines.containers.attempt_backend import AttemptBackend, Signal, Unreachable
from commonage.engines.containers.run import Run
from commonage.ports.agents import OnProgress

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each retry: enough for a registry cleanup, or for freeing disk space."""
_POLL_S = 0.25
_KILL_RETRY_S = 2.0
_log = logging.getLogger(__name__)


async def launch_with_retries(run: Run, container_client: AttemptBackend, on_progress: OnProgress) -> None:
    """Launch it. Raises permanent errors and Unreachable at once, and a temporary error after the last retry."""
    for pause_s in PAUSES_S:
        try:
            await container_client.launch(run, on_progress)
        except Unreachable:
            raise
        except EngineFailure as error:
            if not error.is_retryable:
                raise
            _log.info("cannot start %s, will try again: %s", run.id, error)
            on_progress(RetryingStart(pause_s=pause_s, cause=start_failure(error)), None)
        else:
            return
        await asyncio.sleep(pause_s)
    await container_client.launch(run, on_progress)


async def end_run(run: Run, container_client: AttemptBackend, settle: Callable[[Run], Awaitable[None]]) -> None:
    """Send SIGTERM to its program, and SIGKILL from `run.kill_at` on (which may move closer), until it ended."""
    now = asyncio.get_running_loop().time
    asked = False
    while not run.ended.is_set() and now() < run.kill_at:
        asked = asked or await _sent(run, container_client, "SIGTERM")
        await _wait(run, min(_POLL_S, run.kill_at - now()))
    while not run.ended.is_set():
        await _sent(run, container_client, "SIGKILL")
        await _wait(run, _KILL_RETRY_S)
        if not run.ended.is_set():  # the event of its end may have been lost
            await settle(run)


async def _sent(run: Run, container_client: AttemptBackend, signal: Signal) -> bool:
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
