"""The candidate sites of a request: the sites of its tenant that it names and that have its volumes.

The snapshot puts them into each request; the grid refuses all other nodes. So quotas, promises and explanations need
no rule of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from commonage.domain.sites import EVERYWHERE, SiteSet, only
from commonage.domain.tenants import Reservation, Rules
from commonage.scheduler.model.shapes import QueuedRequest

MAX_KEPT = 10_000


class CandidateSites:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._volumes = dict(rules.volume_sites)
        self._found: dict[tuple[str, tuple[str, ...], str], SiteSet | None] = {}
        self.basis = (
            tuple((one.name, one.tenants) for one in rules.sites),
            tuple((one.name, one.sites) for one in rules.tenants),
            rules.volume_sites,
        )
        """Equal for rules with the same candidate sites."""

    def restricted(self, queued: QueuedRequest) -> QueuedRequest:
        """The request with its candidate sites."""
        sites = self.of(queued.tenant, queued.request.labels, queued.near)
        if sites == queued.request.sites:
            return queued
        return replace(queued, request=replace(queued.request, sites=sites))

    def reserved(self, reservation: Reservation) -> Reservation:
        """The reservation with the candidate sites of its tenant."""
        sites = self.of(reservation.tenant, reservation.request.labels)
        return replace(reservation, request=replace(reservation.request, sites=sites))

    def of(self, tenant: str, labels: Sequence[tuple[str, str]] = (), volumes: tuple[str, ...] = ()) -> SiteSet | None:
        """None: all sites. A volume that is gone restricts nothing: the start of its workload is refused."""
        named = next((value for name, value in labels if name == "site"), "") if labels else ""
        key = (tenant, volumes, named)
        if key in self._found:
            return self._found[key]
        sites = self._rules.sites_of(tenant) & self.with_volumes(volumes) & only(_alternatives(named))
        if len(self._found) >= MAX_KEPT:
            self._found.clear()
        found = self._found[key] = None if sites.is_everywhere else sites
        return found

    def with_volumes(self, volumes: Sequence[str]) -> SiteSet:
        sites = EVERYWHERE
        for name in volumes:
            sites &= only(self._volumes.get(name, ()))
        return sites


def _alternatives(named: str) -> tuple[str, ...]:
    return tuple(named.split("|")) if named else ()
