"""The width of a chart's buckets. Pure; called by the stores of samples."""

from __future__ import annotations

import math

_NICE_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def width_of(since: float, until: float, points: int) -> float:
    """Seconds of a bucket so that at most `points` + 1 of them cover [since, until).

    From one second on it is a round width, so that a chart that moves with time keeps its buckets.
    """
    least = (until - since) / max(1, points)
    if least < 1:
        return least
    nice = next((width for width in _NICE_S if width >= least), None)
    return float(nice if nice is not None else math.ceil(least / 86400) * 86400)
