"""Time: the core's only source of the present time, and its only way to wait."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time in unix seconds."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...
