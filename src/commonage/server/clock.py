"""The clock port on this machine's clock."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """What time it is here."""

    def now(self) -> float:
        """Unix seconds, UTC."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait, and let others work."""
        await asyncio.sleep(seconds)
