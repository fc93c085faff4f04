"""Launches an attempt, and retries temporary errors for a while. Called by the engine."""

from __future__ import annotations

import asyncio
import logging

from commonage.domain.errors import EngineFailure, start_failure
from commonage.domain.reasons.attempts import RetryingStart
from commonage.engines.containers.container_client import Away, ContainerClient
from commonage.engines.containers.run import Run
from commonage.ports.agents import OnProgress

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each retry: enough for a registry cleanup, or for freeing disk space."""
_log = logging.getLogger(__name__)


async def launch_patiently(run: Run, container_client: ContainerClient, on_progress: OnProgress) -> None:
    """Launch it. Raises permanent errors and Away at once, and a temporary error after the last retry."""
    for pause_s in PAUSES_S:
        try:
            await container_client.launch(run, on_progress)
        except Away:
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
