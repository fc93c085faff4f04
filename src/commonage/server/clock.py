"""The clock port, implemented by this machine's clock."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """The system clock."""

    def now(self) -> float:
        """Unix seconds, UTC."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep without blocking the event loop."""
        await asyncio.sleep(seconds)
