"""Explains every site: why the request does not start there, and when there is room. Called by explain.py."""

from __future__ import annotations

import numpy as np

from commonage.domain.explanations import SiteChoice
from commonage.domain.nodes import NodeState
from commonage.domain.reasons import Reason, waiting
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.scheduler.explain.shortfalls import NodeRefusals
from commonage.scheduler.explain.smaller_requests import with_gang
from commonage.scheduler.model.shapes import Bools, QueuedRequest
from commonage.scheduler.plan import SchedulingPass
from commonage.scheduler.snapshot import Snapshot

ROOM = waiting.SiteHasRoom()


def site_choices(snapshot: Snapshot, outcome: SchedulingPass, queued: QueuedRequest) -> tuple[SiteChoice, ...]:
    """All sites, the candidates first, then in the order of the rules; empty if there is only one."""
    names = [*snapshot.sites.names]
    names += [site.name for site in snapshot.rules.sites if site.name not in names]
    if len(names) < 2:
        return ()
    explained = _Sites(snapshot, outcome, queued)
    return tuple(sorted((explained.choice(name) for name in names), key=lambda choice: not choice.is_candidate))


def promised_site(
    outcome: SchedulingPass, queued: QueuedRequest, snapshot: Snapshot
) -> tuple[str, float | None] | None:
    """The site of the promised start, and its time; None without a promise."""
    promise = outcome.promises.get(with_gang(snapshot, queued)[0].workload_id)
    return None if promise is None else (promise.allocations[0].site, promise.at)


class _Sites:
    def __init__(self, snapshot: Snapshot, outcome: SchedulingPass, queued: QueuedRequest) -> None:
        self._snapshot, self._outcome, self._queued = snapshot, outcome, queued
        self._shape = snapshot.grid.shape(queued.request)
        self._members = with_gang(snapshot, queued)
        self._refusals = NodeRefusals(snapshot, outcome, queued)
        self._promised = promised_site(outcome, queued, snapshot)

    def choice(self, name: str) -> SiteChoice:
        excluded = self._excluded(name)
        if excluded is not None:
            return SiteChoice(name, excluded, is_candidate=False)
        nodes = self._snapshot.sites.at(name)
        reason = self._reason(nodes)
        has_no_time = reason is ROOM or isinstance(reason, waiting.TenantQuotaExceededThere)
        return SiteChoice(name, reason, free_at=None if has_no_time else self._free_at(name, nodes))

    def _excluded(self, name: str) -> Reason | None:
        sites, queued = self._queued.request.sites, self._queued
        if sites is None or name in sites:
            return None
        if name not in self._snapshot.rules.sites_of(queued.tenant):
            return waiting.SiteOfOtherTenants(tenant=queued.tenant)
        candidates = self._snapshot.candidates
        lacking = (volume for volume in queued.near if name not in candidates.with_volumes((volume,)))
        volume = next(lacking, None)
        return waiting.SiteNotRequested() if volume is None else waiting.VolumeNotAtSite(volume=volume)

    def _reason(self, nodes: Bools) -> Reason:
        grid = self._snapshot.grid
        there = [grid.nodes[number] for number in np.flatnonzero(nodes).tolist()]
        if not there:
            return waiting.SiteWithoutNodes()
        if all(node.state is NodeState.LOST for node in there):
            causes = (cause for node in there for cause in (*node.reasons, node.report.awaits_admin))
            return next((cause for cause in causes if isinstance(cause, SiteUnreachable)), waiting.SiteUnavailable())
        reasons = self._refusals.of(nodes)
        return reasons[0] if reasons else ROOM

    def _free_at(self, name: str, nodes: Bools) -> float | None:
        if self._promised is not None and self._promised[0] == name:
            return self._promised[1]
        if len(self._members) < self._queued.gang_size:
            return None
        start = self._outcome.backfill.earliest_start(self._members, self._shape, nodes)
        return None if start is None else start[0]
