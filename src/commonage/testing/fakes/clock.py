"""A clock whose time passes only when a test advances it.

Implements the clock port; used by the tests of control and of engines.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

# The rounds of the event loop between two instants: enough for a chain of callbacks of this depth.
_ROUNDS = 50


class FakeClock:
    """A clock at unix second `at` that stands still until `advance`.

    Sleepers wake in order, each at its instant.
    """

    def __init__(self, at: float = 1_700_000_000.0) -> None:
        self._now = at
        self._request = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by `seconds`; for none or less, only let others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiting = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._request), waiting))
        await waiting

    @property
    def next_at(self) -> float | None:
        """When the first sleeper wakes; None while nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass: each sleeper wakes at its own instant and runs until it waits again.

        Only tasks of this event loop are waited for; after work in threads, advance by 0 once more.
        """
        target = self._now + seconds
        await settle()
        while (at := self.next_at) is not None and at <= target:
            self._now = max(self._now, at)
            heapq.heappop(self._sleepers)[2].set_result(None)
            await settle()
        self._now = target
        await settle()


async def settle(rounds: int = _ROUNDS) -> None:
    """Let everything that is ready in this event loop run, and what that makes ready, `rounds` deep."""
    for _ in range(rounds):
        await asyncio.sleep(0)
