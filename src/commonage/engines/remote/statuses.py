"""The statuses of a site's attempts as it last reported them, and the ends that the control plane decided itself."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Collection
from dataclasses import replace

from commonage.domain.codec import Unreadable
from commonage.domain.nodes import Allocation
from commonage.domain.statuses import Phase, Status
from commonage.engines.remote.claims import checked_status
from commonage.engines.remote.clock import SiteClock
from commonage.engines.remote.records import Known, SiteRecords
from commonage.engines.remote.tunnels import Tunnels
from commonage.link.sites.messages.engine import SiteStatuses

_log = logging.getLogger(__name__)
MAX_UNKNOWN = 1000
"""Of attempts that this side never asked the site to start, this many are reported, so that they are ended there."""
_RANK = {Phase.STARTING: 0, Phase.RUNNING: 1, Phase.ENDED: 2}


class SiteAttempts:
    """`all` never goes back to an earlier phase of an attempt, whatever order messages arrive in."""

    def __init__(self, records: SiteRecords, tunnels: Tunnels, clock: SiteClock) -> None:
        self._records, self._tunnels, self._clock = records, tunnels, clock
        self._known: dict[str, Status] = {}
        self._own: dict[str, Status] = {}
        self._dispatched: set[str] = set()
        self._images: dict[str, str] = {}
        self._watchers: list[tuple[deque[Status], asyncio.Event]] = []

    def restore(self, known: Known) -> None:
        self._known, self._own = dict(known.statuses), dict(known.own)
        # Before there was a list of what was dispatched, all that was known counts.
        self._dispatched = known.dispatched | known.addresses.keys() | set(known.commands)
        self._images = dict(known.images)
        running = {one.attempt_id for one in self._known.values() if one.phase is Phase.RUNNING}
        self._tunnels.restore({key: address for key, address in known.addresses.items() if key in running})

    def all(self) -> dict[str, Status]:
        return {**self._own, **self._known}

    def get(self, attempt_id: str) -> Status | None:
        return self._known.get(attempt_id) or self._own.get(attempt_id)

    def dispatch(self, attempt_id: str, image: str | None) -> None:
        """The site is asked to start it: from now on it may have an address here, and pull its image."""
        self._dispatched.add(attempt_id)
        if image:
            self._images[attempt_id] = image

    def uses(self, image: str) -> bool:
        """Whether an attempt with this image was dispatched and may still start."""
        ended = {one for one, status in self.all().items() if status.phase is Phase.ENDED}
        return any(known == image for attempt_id, known in self._images.items() if attempt_id not in ended)

    async def adopt(self, allocations: Collection[Allocation]) -> None:
        """The site has started these by itself: until it reports their statuses, they are starting. Durable."""
        self._dispatched.update(one.attempt_id for one in allocations)
        fresh = [
            Status(one.attempt_id, Phase.STARTING, one.at, one.node)
            for one in allocations
            if one.attempt_id not in self._known
        ]
        self._known.update((one.attempt_id, one) for one in fresh)
        await self._records.keep_adopted(fresh)
        self._tell(fresh)

    def apply(self, statuses: SiteStatuses, forgotten: Collection[str]) -> None:
        """Take what the site reported, except on attempts in `forgotten`: the site does not know yet that they are."""
        listed = {one.attempt_id for one in statuses.changed}
        removed = set(statuses.removed)
        if statuses.complete:
            removed |= self._known.keys() - listed
        changed = []
        for reported in self._without_strangers(statuses.changed):
            known = self._known.get(reported.attempt_id)
            if reported.attempt_id in forgotten or (known and _RANK[known.phase] > _RANK[reported.phase]):
                continue
            try:
                status = self._reachable(self._in_own_time(checked_status(reported), known))
            except Unreadable as error:
                _log.warning("a status is dropped: %s", error)
                continue
            if status != known:
                self._known[status.attempt_id] = status
                changed.append(status)
        removed = {one for one in removed if self._known.pop(one, None) is not None}
        for attempt_id in removed:
            self._tunnels.end(attempt_id)
        if changed or removed:
            self._records.keep_statuses(changed, removed)
        self._tell(changed)

    def _without_strangers(self, statuses: Collection[Status]) -> list[Status]:
        """Without attempts that this side never asked the site to start, beyond a limit."""
        strangers = {one.attempt_id for one in statuses} - self._dispatched - self._known.keys()
        room = MAX_UNKNOWN - len(self._known.keys() - self._dispatched)
        if len(strangers) <= room:
            return list(statuses)
        _log.warning("%s attempts are ignored: the site was never asked to start them", len(strangers))
        return [one for one in statuses if one.attempt_id not in strangers]

    def _in_own_time(self, status: Status, known: Status | None) -> Status:
        """Its times on the clock of this side. The time of a start or of a phase that is known stays as it is."""
        same = known if known is not None and known.phase is status.phase else None
        at = self._clock.here(status.at) if same is None else same.at
        if status.started_at is None:
            return replace(status, at=at)
        started = known.started_at if known is not None else None
        if started is None:
            started = min(self._clock.here(status.started_at), at)
        return replace(status, at=max(at, started), started_at=started)

    def _reachable(self, status: Status) -> Status:
        """With the address by which the control plane reaches it."""
        if status.phase is Phase.ENDED:
            self._tunnels.end(status.attempt_id)
        if status.url is None:
            return status
        if status.attempt_id not in self._dispatched:
            return replace(status, url=None)
        url = None if status.phase is Phase.ENDED else self._tunnels.url(status.attempt_id, status.url)
        return replace(status, url=url)

    def end(self, status: Status) -> None:
        """The end of an attempt that never reached the site."""
        self._own[status.attempt_id] = status
        self._records.keep_statuses([status], (), own=True)
        self._tell([status])

    def forget(self, attempt_id: str) -> None:
        self._known.pop(attempt_id, None)
        self._own.pop(attempt_id, None)
        self._dispatched.discard(attempt_id)
        self._images.pop(attempt_id, None)
        self._tunnels.end(attempt_id)
        self._records.forget(attempt_id)

    async def watch(self) -> AsyncGenerator[Status]:
        queue: deque[Status] = deque()
        watcher = (queue, asyncio.Event())
        self._watchers.append(watcher)
        try:
            while True:
                while queue:
                    yield queue.popleft()
                watcher[1].clear()
                await watcher[1].wait()
        finally:
            self._watchers.remove(watcher)

    def _tell(self, changed: Collection[Status]) -> None:
        for queue, woken in self._watchers:
            queue.extend(changed)
            woken.set()
