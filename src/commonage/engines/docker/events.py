"""Listens to the daemon's events forever. After each new connection every attempt is looked at again: no event is
missed.

Used by the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from commonage.domain.errors import EngineFailure
from commonage.domain.iterations import Iterations
from commonage.engines.containers.daemon.descriptions import LABEL
from commonage.engines.docker.client import Client

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class EventHandlers:
    """Callbacks: connected (again), an event of an attempt, the daemon does not answer."""

    on_connected: Callable[[], Awaitable[None]]
    heard: Callable[[str, str, str], None]
    on_disconnected: Callable[[str], None]


async def watch_events(client: Client, label: str, handlers: EventHandlers, iterations: Iterations) -> None:
    """Listen until cancelled. A turn is one event."""
    pause, was_there = _FIRST_PAUSE_S, True
    while True:
        why = f"the Docker daemon at {client.url} ended the connection"
        iterations.end()  # waiting for the daemon counts as rest
        try:
            async with aclosing(client.events(label)) as events:  # type: ignore[type-var]  # a generator in practice
                async for event in events:
                    iterations.begin()
                    if event:
                        attributes = event["Actor"]["Attributes"]
                        attempt = attributes.get(f"{LABEL}.attempt", "")
                        handlers.heard(attempt, event["Action"], attributes.get("signal", ""))
                    else:
                        await handlers.on_connected()
                        if not was_there:
                            _log.warning("the Docker daemon at %s answers again", client.url)
                        pause, was_there = _FIRST_PAUSE_S, True
                    iterations.end()
        except EngineFailure as error:
            why = str(error)
        handlers.on_disconnected(why)
        if was_there:
            _log.error("%s", why)
        was_there = False
        with iterations.rest():
            await asyncio.sleep(pause)
        pause = min(_LONGEST_PAUSE_S, pause * 1.5)
