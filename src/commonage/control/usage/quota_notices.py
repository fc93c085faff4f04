"""Notices about quotas: one event when the use of a bound reaches 80 percent, and one when it reaches 100.

Once in each period: the calendar month for GPU-hours, the day for all else. Sent notices are stored, so that a restart
does not repeat them. Bounds beyond which the tenant may borrow are no limits, and have no notices.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.usage.quota_use import QuotaUses
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.domain.months import day_of, month_of
from commonage.domain.reasons.notes import QuotaUse
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.tenants import Quota, QuotaNotice
from commonage.domain.workloads import Event, EventKind
from commonage.ports.clock import Clock
from commonage.ports.store import Store

log = logging.getLogger(__name__)
EVERY_S = 60.0
LEVELS = (100, 80)
Key = tuple[str, QuotaScope, str, Resource]


class QuotaNotices:
    def __init__(self, store: Store, live_state: LiveState, writer: Writer, uses: QuotaUses, clock: Clock) -> None:
        self._store, self._live_state, self._writer, self._uses, self._clock = store, live_state, writer, uses, clock
        self._given: dict[Key, QuotaNotice] = {}
        self.iterations = Iterations("quota-notices", clock.now)

    async def open(self) -> None:
        month, _ = month_of(self._clock.now(), self._live_state.snapshot.rules.time_zone)
        self._given = {_key(one): one for one in await self._store.quota_notices(since=month)}

    async def run(self) -> None:
        while True:
            with self.iterations.rest():
                await self._clock.sleep(EVERY_S)
            try:
                await self.check()
            except CommonageError as error:  # tried again at the next turn
                log.warning("notices about quotas are not written: %s", error)

    async def check(self) -> None:
        """Write the notices that are due. Raises Unavailable while the store does not answer."""
        now = self._clock.now()
        due = [(use, notice) for use in self._all() if (notice := self._due(use, now)) is not None]
        if not due:
            return
        events = [
            Event(
                EventKind.WARNING,
                now,
                use,
                owner=use.name if use.scope is QuotaScope.USER else None,
                tenant=use.tenant,
            )
            for use, _ in due
        ]
        await self._writer.write(events=events, quota_notices=[notice for _, notice in due])
        self._given.update((_key(notice), notice) for _, notice in due)

    def _all(self) -> Iterator[QuotaUse]:
        for tenant in self._live_state.snapshot.rules.tenants:
            if tenant.quota != Quota():
                yield from self._uses.shared(tenant)
                yield from self._uses.of_members(tenant)

    def _due(self, use: QuotaUse, now: float) -> QuotaNotice | None:
        level = next((level for level in LEVELS if use.percent >= level), None)
        if level is None or not use.is_near:
            return None
        zone = self._live_state.snapshot.rules.time_zone
        period_at, _ = month_of(now, zone) if use.resource is Resource.GPU_HOURS else day_of(now, zone)
        notice = QuotaNotice(use.tenant, use.scope, use.name, use.resource, level, period_at, now)
        given = self._given.get(_key(notice))
        return None if given is not None and given.period_at == period_at and given.level >= level else notice


def _key(notice: QuotaNotice) -> Key:
    return (notice.tenant, notice.scope, notice.name, notice.resource)
