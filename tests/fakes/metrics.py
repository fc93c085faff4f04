"""The metrics port on a list."""

from __future__ import annotations

from collections.abc import Sequence

from commonage.ports.metrics import Point, Sample


class KeptMetrics:
    """Keeps every sample as it is."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.tidied: list[float] = []

    async def write(self, samples: Sequence[Sample]) -> None:
        self.samples += samples

    async def query(
        self, metric: str, subject: str, *, since: float, until: float, points: int = 200
    ) -> Sequence[Point]:
        found = [one for one in self.samples if (one.metric, one.subject) == (metric, subject)]
        return [Point(one.at, one.value, one.value, one.value) for one in found if since <= one.at < until][-points:]

    async def latest(self, subjects: Sequence[str]) -> Sequence[Sample]:
        return []

    async def tidy(self, now: float) -> None:
        self.tidied.append(now)
