"""Rate limits as token buckets, per user or per address. Used by the API and the portal."""

from __future__ import annotations

import math
from collections import OrderedDict

from commonage.control.limits import Limits
from commonage.domain.errors import TooMany
from commonage.ports.clock import Clock

_MAX_KEYS = 10_000
_BURST_FACTOR = 4


class RateLimit:
    """One bucket per key: capacity `burst` requests, refilled at `per_s`. `what` is named in the error."""

    def __init__(self, clock: Clock, what: str, *, per_s: float, burst: float) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = max(1.0, burst)
        self._what = what
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # (tokens left, time of that) by key

    def take(self, key: str) -> None:
        """Count one request. Raises TooMany with the time until the next one is allowed."""
        now, there = self._clock.now(), self._content(key)
        if there < 1.0:
            wait_s = (1.0 - there) / self._per_s
            raise TooMany(
                f"{self._what} {key[:80]}: at most {self._per_s:g} a second and {self._burst:g} at once allowed. "
                f"Wait {math.ceil(wait_s)} s, then ask less often.",
                retry_after_s=wait_s,
            )
        self._put(key, there - 1.0, now)

    def give_back(self, key: str) -> None:
        self._put(key, min(self._burst, self._content(key) + 1.0), self._clock.now())

    def _content(self, key: str) -> float:
        there, at = self._buckets.get(key, (self._burst, 0.0))
        return min(self._burst, there + max(0.0, self._clock.now() - at) * self._per_s)

    def _put(self, key: str, there: float, now: float) -> None:
        self._buckets[key] = (there, now)
        self._buckets.move_to_end(key)
        while len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)


def requests_of_users(clock: Clock, limits: Limits) -> RateLimit:
    """The limit on requests; keys are user names. The burst is four times the rate: a page sends several requests."""
    return RateLimit(
        clock, "Too many requests of", per_s=limits.requests_per_s, burst=_BURST_FACTOR * limits.requests_per_s
    )
