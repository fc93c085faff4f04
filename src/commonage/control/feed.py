"""Events as they are written, for those who listen now. What was before comes from the store (see look.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from commonage.domain.events import Event

MOST_BEHIND = 5000


class Feed:
    """Gives every listener every event, in order. A listener that falls far behind is cut off and must resume."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[Event | None]] = set()

    def publish(self, events: list[Event]) -> None:
        """Tell all listeners. Called by the ledger, after the commit, in the order of `seq`."""
        for queue in list(self._listeners):
            for event in events:
                if queue.qsize() >= MOST_BEHIND:
                    self._listeners.discard(queue)
                    queue.put_nowait(None)
                    break
                queue.put_nowait(event)

    @contextmanager
    def listen(self) -> Iterator[AsyncIterator[Event]]:
        """From entering on, every event; the iterator ends when the listener fell too far behind."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            yield _drain(queue)
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """End all listening, as at shutdown."""
        for queue in self._listeners:
            queue.put_nowait(None)
        self._listeners.clear()


async def _drain(queue: asyncio.Queue[Event | None]) -> AsyncIterator[Event]:
    while (event := await queue.get()) is not None:
        yield event
