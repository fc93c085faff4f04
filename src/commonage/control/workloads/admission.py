"""Refuses workloads at submission: those that can never start here, and those above the limits on live workloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from commonage.control.settings import Limits
from commonage.control.state.live_state import CountKey, LiveState, count_keys, data_of, request_from_spec
from commonage.control.usage.homes import HomeWatch
from commonage.domain.errors import InvalidInput, TooMany, Unschedulable
from commonage.domain.reasons import Reason
from commonage.domain.reasons.refusals import (
    LimitOf,
    NoSiteForTenant,
    SiteNotFound,
    StorageQuotaExceeded,
    TooFewNodes,
    TooManyQueued,
    TooManyWorkloads,
    VolumeAtNoSite,
)
from commonage.domain.reasons.waiting import QuotaScope
from commonage.domain.requests import Request
from commonage.domain.tenants import bounds_of
from commonage.domain.workloads import Kind, Spec
from commonage.scheduler.autoscaling import max_nodes_for
from commonage.scheduler.explain.explain import ever_fits
from commonage.scheduler.model.shapes import QueuedRequest


def unschedulable_request(live_state: LiveState, request: Request) -> Reason | None:
    if max_nodes_for(live_state.node_pools, request):
        return None
    return ever_fits(live_state.snapshot.grid, request)


def never(live_state: LiveState, spec: Spec) -> Reason | None:
    considered = live_state.snapshot.restricted(request_from_spec(spec, "", 0.0))
    rented = max_nodes_for(live_state.node_pools, considered.request)
    return (
        unschedulable_request(live_state, considered.request)
        or _too_many_nodes(live_state, spec, considered, rented)
        or _beyond_quota(live_state, spec, considered)
    )


def check_sites(live_state: LiveState, spec: Spec) -> None:
    """Raise an error if no site with nodes is a candidate: no such site, no site with its volumes, none for the tenant.

    A site of another tenant is not told apart from one that does not exist.
    """
    snapshot = live_state.snapshot
    sites = snapshot.restricted(request_from_spec(spec, "", 0.0)).request.sites
    known = {node.site for node in live_state.nodes.values()} | {pool.site for pool in live_state.node_pools}
    if sites is None or not known or any(name in sites for name in known):
        return
    own = snapshot.rules.sites_of(spec.tenant)
    there = tuple(sorted(name for name in known if name in own))
    named = dict(spec.request.labels).get("site", "")
    if not there:
        raise Unschedulable(NoSiteForTenant(tenant=spec.tenant))
    if named and not set(named.split("|")) & set(there):
        raise InvalidInput(SiteNotFound(site=named, tenant=spec.tenant, sites=there), field="on", code="unknown-site")
    volumes = tuple(name for name in data_of(spec) if not snapshot.candidates.with_volumes((name,)).is_everywhere)
    field = "near" if spec.near in volumes else "volumes"
    raise InvalidInput(VolumeAtNoSite(volumes=volumes, tenant=spec.tenant), field=field, code="volume-at-no-site")


def _too_many_nodes(live_state: LiveState, spec: Spec, considered: QueuedRequest, rented: int) -> Reason | None:
    """Compare the gang's size with the number of nodes. Each member needs its own; `rented` more nodes may be added."""
    grid = live_state.snapshot.grid
    known = np.flatnonzero([node.may_return for node in grid.nodes])
    if not spec.gang or not len(known):
        return None
    enough = int(np.count_nonzero(grid.could_fit(grid.shape(considered.request), known))) + rented
    if enough >= spec.array_size:
        return None
    return TooFewNodes(requested=spec.array_size, nodes=enough, request=str(spec.request))


def _beyond_quota(live_state: LiveState, spec: Spec, considered: QueuedRequest) -> Reason | None:
    """Workloads in a reservation do not count towards the quota, so owners of a reservation may request more."""
    snapshot = live_state.snapshot
    if any(one.tenant == spec.tenant for one in snapshot.rules.reservations):
        return None
    members = spec.array_size if spec.gang else 1
    return snapshot.quotas.never_reason(considered, snapshot.grid.shape(considered.request), members)


CODE = "too-many-workloads"


class LiveLimits:
    """Counts the live workloads and those that are being written."""

    def __init__(self, live_state: LiveState, limits: Limits, storage: HomeWatch | None = None) -> None:
        self._live_state, self._limits, self._storage = live_state, limits, storage
        self._coming: dict[str, Spec] = {}  # by the id of the (first) workload

    def check(self, spec: Spec) -> None:
        """Raise TooMany if the limits leave no room for it."""
        more, limits = max(1, spec.array_size), self._limits
        for key in count_keys(spec):
            there, most = self._live(key), self._limit(key)
            if there + more > most:
                of = LimitOf.TENANT if key[0] == "tenant" else LimitOf.USER
                raise _too_many(of, key[1], spec, there, most)
        self._check_queued(spec, more)
        self._check_storage(spec)
        # The last tenth is reserved for sessions: a user who fills the queue must not keep others from their notebooks.
        most = limits.workloads if spec.kind is Kind.SESSION else limits.workloads - limits.workloads // 10
        there = self._live()
        if there + more > most:
            raise _too_many(LimitOf.EVERYBODY, "", spec, there, most)

    def _check_queued(self, spec: Spec, more: int) -> None:
        quota = self._live_state.snapshot.rules.tenant(spec.tenant).quota
        for scope, name, bounds in bounds_of(quota, spec.tenant, spec.owner, spec.environment):
            if bounds.queued is None:
                continue
            queued = self.queued(spec.tenant, scope, name)
            if queued + more > bounds.queued:
                raise TooMany(
                    TooManyQueued(
                        tenant=spec.tenant, scope=scope, name=name, queued=queued, submitted=more, limit=bounds.queued
                    ),
                    code=CODE,
                )

    def _check_storage(self, spec: Spec) -> None:
        """Sessions start, so that their users can delete files."""
        if self._storage is None or spec.kind is Kind.SESSION:
            return
        quota = self._live_state.snapshot.rules.tenant(spec.tenant).quota
        for scope, name, bounds in bounds_of(quota, spec.tenant, spec.owner, spec.environment):
            user = spec.owner if scope is QuotaScope.USER else None
            used = None if bounds.storage_mib is None else self._storage.stored_mib(spec.tenant, user)
            if bounds.storage_mib is not None and used is not None and used > bounds.storage_mib:
                raise TooMany(
                    StorageQuotaExceeded(
                        tenant=spec.tenant,
                        scope=scope,
                        name=name,
                        used_mib=used,
                        limit_mib=bounds.storage_mib,
                        measured_at=self._storage.measured_at,
                    ),
                    code="storage-quota-exceeded",
                )

    def queued(self, tenant: str, scope: QuotaScope, name: str) -> int:
        """Number of held and queued workloads of one scope; includes those that are being written."""
        counts = Counter(self._live_state.waiting(tenant))
        for workload_id, spec in self._coming.items():
            if spec.tenant == tenant and self._live_state.get(workload_id) is None:
                counts[spec.owner, spec.environment] += max(1, spec.array_size)
        part = {QuotaScope.USER: 0, QuotaScope.ENVIRONMENT: 1}.get(scope)
        return sum(count for key, count in counts.items() if part is None or key[part] == name)

    @contextmanager
    def reserve(self, spec: Spec, workload_id: str) -> Iterator[None]:
        """Reserve room for the workload until it is live. Raises TooMany."""
        self.check(spec)
        self._coming[workload_id] = spec
        try:
            yield
        finally:
            del self._coming[workload_id]

    def _limit(self, key: CountKey) -> int:
        kind, name = key
        if kind == "tenant":
            own = self._live_state.snapshot.rules.tenant(name).max_workloads
            return self._limits.workloads_per_tenant if own is None else own
        return self._limits.workloads_per_user if kind == "user" else self._limits.sessions_per_user

    def _live(self, key: CountKey | None = None) -> int:
        """Number of workloads under a key, None: in total; includes those that are being written."""
        coming = sum(
            max(1, spec.array_size)
            for workload_id, spec in self._coming.items()
            if (key is None or key in count_keys(spec)) and self._live_state.get(workload_id) is None
        )
        return coming + (len(self._live_state) if key is None else self._live_state.count(key))


def _too_many(of: LimitOf, name: str, spec: Spec, live: int, limit: int) -> TooMany:
    sessions, submitted = spec.kind is Kind.SESSION, max(1, spec.array_size)
    why = TooManyWorkloads(of=of, name=name, sessions=sessions, live=live, submitted=submitted, limit=limit)
    return TooMany(why, code=CODE)
