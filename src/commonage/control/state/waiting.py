"""Waits for an event with a timeout on the clock port. Called by the loops."""

from __future__ import annotations

import asyncio

from commonage.ports.clock import Clock


async def wait_at_most(seconds: float, event: asyncio.Event, clock: Clock) -> None:
    """Return when the event is set or after `seconds`, whichever comes first."""
    if event.is_set():
        return
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
