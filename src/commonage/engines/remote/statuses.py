"""The statuses of a site's attempts as it last reported them, and the ends that the control plane decided itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection
from dataclasses import replace

from commonage.domain.statuses import Phase, Status
from commonage.engines.remote.records import Known, SiteRecords
from commonage.engines.remote.tunnels import Tunnels
from commonage.link.sites.engine_messages import SiteStatuses

_RANK = {Phase.STARTING: 0, Phase.RUNNING: 1, Phase.ENDED: 2}


class SiteAttempts:
    """`all` never goes back to an earlier phase of an attempt, whatever order messages arrive in."""

    def __init__(self, records: SiteRecords, tunnels: Tunnels) -> None:
        self._records, self._tunnels = records, tunnels
        self._known: dict[str, Status] = {}
        self._own: dict[str, Status] = {}
        self._watchers: list[tuple[deque[Status], asyncio.Event]] = []

    def restore(self, known: Known) -> None:
        self._known, self._own = dict(known.statuses), dict(known.own)
        running = {one.attempt_id for one in self._known.values() if one.phase is Phase.RUNNING}
        self._tunnels.restore({key: address for key, address in known.addresses.items() if key in running})

    def all(self) -> dict[str, Status]:
        return {**self._own, **self._known}

    def get(self, attempt_id: str) -> Status | None:
        return self._known.get(attempt_id) or self._own.get(attempt_id)

    def apply(self, statuses: SiteStatuses, forgotten: Collection[str]) -> None:
        """Take what the site reported, except on attempts in `forgotten`: the site does not know yet that they are."""
        listed = {one.attempt_id for one in statuses.changed}
        removed = set(statuses.removed)
        if statuses.complete:
            removed |= self._known.keys() - listed
        changed = []
        for reported in statuses.changed:
            known = self._known.get(reported.attempt_id)
            if reported.attempt_id in forgotten or (known and _RANK[known.phase] > _RANK[reported.phase]):
                continue
            status = self._reachable(reported)
            if status != known:
                self._known[status.attempt_id] = status
                changed.append(status)
        removed = {one for one in removed if self._known.pop(one, None) is not None}
        for attempt_id in removed:
            self._tunnels.end(attempt_id)
        if changed or removed:
            self._records.keep_statuses(changed, removed)
        self._tell(changed)

    def _reachable(self, status: Status) -> Status:
        """With the address by which the control plane reaches it."""
        if status.phase is Phase.ENDED:
            self._tunnels.end(status.attempt_id)
        if status.url is None:
            return status
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
        self._tunnels.end(attempt_id)
        self._records.keep_statuses((), [attempt_id])

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
