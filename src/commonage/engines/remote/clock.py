"""The clock of a site: its times as times of this side."""

from __future__ import annotations

import logging
from collections.abc import Callable

from commonage.engines.remote.records import SiteRecords

_log = logging.getLogger(__name__)
_STEP_S = 0.25
_OLDEST_S = 10 * 365 * 86400.0


class SiteClock:
    """The offset in use changes only when the estimate has moved by more than 0.25 s, and survives a restart.

    So a time that the site sends twice is the same time here. Clocks that agree are never converted.
    """

    def __init__(self, site: str, records: SiteRecords, now: Callable[[], float]) -> None:
        self._site, self._records, self._now = site, records, now
        self._offset_s = 0.0

    def restore(self, offset_s: float) -> None:
        self._offset_s = offset_s

    def follow(self, estimate_s: float) -> None:
        """`estimate_s`: add this to a time of the site."""
        if abs(estimate_s - self._offset_s) > _STEP_S:
            _log.info("site %s: its times are converted by %+.2f s", self._site, estimate_s)
            self._offset_s = estimate_s
            self._records.keep_clock_offset(estimate_s)

    def here(self, at: float) -> float:
        """The time of this side; nothing that was observed is in the future, or older than ten years."""
        now = self._now()
        return max(now - _OLDEST_S, min(at + self._offset_s, now))
