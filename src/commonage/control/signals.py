"""Signals, by which parts of control notify others without knowing them, and waiting for an event with a timeout."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Generic, ParamSpec

from commonage.ports.clock import Clock

log = logging.getLogger(__name__)
P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls its followers in the order in which they were added. A follower must not block.

    An exception of one is logged: what it is told has happened, and the other followers and the sender go on.
    """

    def __init__(self) -> None:
        self._followers: list[Callable[P, None]] = []

    def follow(self, follower: Callable[P, None]) -> None:
        self._followers.append(follower)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for follower in self._followers:
            try:
                follower(*args, **kwargs)
            except Exception:  # any exception is a defect of that follower
                log.exception("a follower of a signal failed: %s", getattr(follower, "__qualname__", follower))


async def cancel_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel the tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def wait_at_most(seconds: float, event: asyncio.Event, clock: Clock) -> None:
    """Return when the event is set, or after `seconds` at the latest."""
    if event.is_set():
        return
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
