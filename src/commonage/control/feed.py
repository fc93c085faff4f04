"""Events as they are written, for those who listen now. What was before comes from the store (see look.py)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from commonage.domain.events import Event

MOST_BEHIND = 5000


class Feed:
    """Gives every listener every event, in order. A listener that falls far behind is cut off and must resume."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()

    def publish(self, events: Sequence[Event]) -> None:
        """Tell all listeners. Called by the ledger, after the commit, in the order of `seq`."""
        for listener in list(self._listeners):
            listener.tell(events)
            if listener.ended:
                self._listeners.discard(listener)

    @contextmanager
    def listen(self) -> Iterator[AsyncIterator[Event]]:
        """From entering on, every event; the iterator ends when the listener fell too far behind."""
        listener = _Listener()
        self._listeners.add(listener)
        try:
            yield listener.events()
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        """End all listening, as at shutdown."""
        for listener in self._listeners:
            listener.end()
        self._listeners.clear()


class _Listener:
    """What one listener has not taken yet. It is woken once for each commit, not for each event: listeners are many."""

    def __init__(self) -> None:
        self._waiting: deque[Event] = deque()
        self._woken = asyncio.Event()
        self.ended = False

    def tell(self, events: Sequence[Event]) -> None:
        """Add events; those beyond what may wait are dropped, and with them all to come."""
        room = MOST_BEHIND - len(self._waiting)
        self._waiting.extend(islice(events, room))
        if len(events) > room:
            self.ended = True
        self._woken.set()

    def end(self) -> None:
        """Nothing comes any more."""
        self.ended = True
        self._woken.set()

    async def events(self) -> AsyncIterator[Event]:
        """One after the other, until the end."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self.ended:
                return
            self._woken.clear()
            await self._woken.wait()
