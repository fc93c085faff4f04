"""Samples that a site kept during an outage. Those of attempts are stored if they are of its own, while these ran.

Most of these attempts have ended meanwhile, so the store is asked for their sites.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from commonage.domain.errors import InvalidInput
from commonage.domain.workloads import Attempt, workload_of
from commonage.ports.clock import Clock
from commonage.ports.metrics import Metrics, Sample
from commonage.ports.store import Store

log = logging.getLogger(__name__)
_SUBJECT = "attempt:"
_SLACK_S = 30.0
"""A site's clock is known this well, at worst: a delayed line makes the estimate worse."""
_MAX_KNOWN = 10_000


@dataclass(slots=True)
class SiteSamples:
    store: Store
    metrics: Metrics
    clock: Clock
    _ended: dict[str, Attempt] = field(default_factory=dict, init=False)

    async def write(self, site: str, samples: Sequence[Sample]) -> None:
        """Samples of nodes and devices already name the site, by its engine here.

        Raises Unavailable; then none is stored, and the site sends them again.
        """
        attempts: dict[str, Attempt | None] = {}
        kept = []
        for one in samples:
            if not one.subject.startswith(_SUBJECT):
                kept.append(one)
                continue
            attempt_id = one.subject.removeprefix(_SUBJECT)
            if attempt_id not in attempts:
                attempts[attempt_id] = await self._attempt(attempt_id)
            attempt = attempts[attempt_id]
            if attempt is not None and attempt.allocation.site == site and self._is_in(one.at, attempt):
                kept.append(one)
        if len(kept) < len(samples):
            log.warning("site %s: %d samples are not of its own attempts: ignored", site, len(samples) - len(kept))
        if kept:
            await self.metrics.write(kept)

    def _is_in(self, at: float, attempt: Attempt) -> bool:
        until = self.clock.now() if attempt.ended_at is None else attempt.ended_at
        return attempt.allocation.at - _SLACK_S <= at <= until + _SLACK_S

    async def _attempt(self, attempt_id: str) -> Attempt | None:
        if (known := self._ended.get(attempt_id)) is not None:
            return known
        try:
            found = await self.store.attempts(workload_of(attempt_id))
        except InvalidInput:  # any text may arrive
            return None
        attempt = next((one for one in found if one.id == attempt_id), None)
        if attempt is not None and attempt.ended_at is not None:
            if len(self._ended) >= _MAX_KNOWN:
                self._ended.clear()
            self._ended[attempt_id] = attempt
        return attempt
