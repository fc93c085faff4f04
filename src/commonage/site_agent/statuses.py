"""The statuses of the local engine as the control plane gets them: each change once on a link, never backwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from commonage.domain.statuses import Phase, Status
from commonage.link.sites.messages.engine import SiteStatuses
from commonage.ports.engine import Engine

_RANK = {Phase.STARTING: 0, Phase.RUNNING: 1, Phase.ENDED: 2}
_MAX_FORGOTTEN = 10_000


class StatusTracker:
    """`on_change` is called with each change."""

    def __init__(self, engine: Engine, on_change: Callable[[SiteStatuses], None]) -> None:
        self._engine, self._on_change = engine, on_change
        self._known: dict[str, Status] = {}
        self._refused: dict[str, Status] = {}
        self._accepted: dict[str, Status] = {}
        self._forgotten: dict[str, None] = {}  # in the order of forgetting

    def complete(self) -> SiteStatuses:
        return SiteStatuses(tuple(self.all()), complete=True)

    def all(self) -> Collection[Status]:
        return (self._accepted | self._known | self._refused).values()

    def get(self, attempt_id: str) -> Status | None:
        return self._refused.get(attempt_id) or self._known.get(attempt_id) or self._accepted.get(attempt_id)

    def is_forgotten(self, attempt_id: str) -> bool:
        return attempt_id in self._forgotten

    def accept(self, status: Status) -> None:
        """The site starts this attempt by itself: this is its status until the engine reports one."""
        self._accepted[status.attempt_id] = status

    def observe(self, *statuses: Status) -> None:
        changed = [one for one in statuses if self._is_news(one)]
        self._known.update((one.attempt_id, one) for one in changed)
        for one in changed:
            self._accepted.pop(one.attempt_id, None)
        if changed:
            self._on_change(SiteStatuses(tuple(changed)))

    def _is_news(self, status: Status) -> bool:
        known = self._known.get(status.attempt_id)
        if status.attempt_id in self._forgotten or status == known:
            return False
        return known is None or _RANK[status.phase] >= _RANK[known.phase]

    async def refresh(self) -> None:
        """Compare with all that the engine reports now. Raises EngineFailure."""
        before = set(self._known)
        seen = await self._engine.statuses()
        self.observe(*seen)
        self._remove(before - {one.attempt_id for one in seen})

    def refuse(self, status: Status) -> None:
        """The engine refused to start this attempt for good: `status` is its end."""
        self._accepted.pop(status.attempt_id, None)
        self._refused[status.attempt_id] = status
        self._on_change(SiteStatuses((status,)))

    def forget(self, attempt_id: str) -> None:
        self._refused.pop(attempt_id, None)
        self._accepted.pop(attempt_id, None)
        self._known.pop(attempt_id, None)
        self._forgotten[attempt_id] = None
        while len(self._forgotten) > _MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]

    def _remove(self, attempt_ids: Iterable[str]) -> None:
        gone = [one for one in attempt_ids if self._known.pop(one, None) is not None]
        if gone:
            self._on_change(SiteStatuses(removed=tuple(gone)))
