"""Events: made for a workload, and delivered to current listeners as they are written.

Earlier events come from the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from commonage.domain.reasons import Reason
from commonage.domain.workloads import Event, EventKind, Workload

MAX_BEHIND = 5000


def event_of(workload: Workload, kind: EventKind, at: float, reason: Reason) -> Event:
    """An event about a workload and its newest attempt."""
    spec, attempt = workload.spec, workload.attempt
    attempt_id = attempt.id if attempt is not None else None
    return Event(kind, at, reason, workload.id, attempt_id, spec.owner, spec.tenant, workload.state)


class Feed:
    """Gives each listener all events, in order. A listener that falls too far behind is cut off and must resume."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()

    def publish(self, events: Sequence[Event]) -> None:
        """Send events to all listeners. Called by the writer, after the commit, in the order of `seq`."""
        for listener in list(self._listeners):
            listener.tell(events)
            if listener.ended:
                self._listeners.discard(listener)

    @contextmanager
    def listen(self) -> Iterator[AsyncIterator[Event]]:
        """Deliver every event from entering on; the iterator ends when the listener fell too far behind."""
        listener = _Listener()
        self._listeners.add(listener)
        try:
            yield listener.events()
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        for listener in self._listeners:
            listener.end()
        self._listeners.clear()


class _Listener:
    """Events that one listener has not consumed yet. It is woken once per commit: there are many listeners."""

    def __init__(self) -> None:
        self._waiting: deque[Event] = deque()
        self._woken = asyncio.Event()
        self.ended = False

    def tell(self, events: Sequence[Event]) -> None:
        """Add events. When the backlog is full, these and all later events are dropped."""
        room = MAX_BEHIND - len(self._waiting)
        self._waiting.extend(islice(events, room))
        if len(events) > room:
            self.ended = True
        self._woken.set()

    def end(self) -> None:
        self.ended = True
        self._woken.set()

    async def events(self) -> AsyncIterator[Event]:
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self.ended:
                return
            self._woken.clear()
            await self._woken.wait()
