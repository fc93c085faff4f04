"""Time: the only way the core learns what time it is, and the only way it waits."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time in unix seconds."""

    def now(self) -> float:
        """Unix seconds, UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
