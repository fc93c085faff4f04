"""The room that each bound of a quota leaves: for the API, the launch form, dry runs and notices. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.usage.homes import HomeWatch
from commonage.control.workloads.admission import LiveLimits
from commonage.domain.errors import NotFound
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import QuotaUse
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.tenants import Bounds, Tenant
from commonage.ports.clock import Clock

_RESOURCES = {
    "cpus_milli": Resource.CPU,
    "memory_mib": Resource.MEMORY,
    "gpu_milli": Resource.GPU,
    "vram_mib": Resource.GPU_MEMORY,
    "running": Resource.RUNNING,
    "queued": Resource.QUEUED,
    "storage_mib": Resource.STORAGE,
    "gpu_s_month": Resource.GPU_HOURS,
}


@dataclass(frozen=True, slots=True)
class QuotaUses:
    live_state: LiveState
    live_limits: LiveLimits
    homes: HomeWatch
    clock: Clock
    settings: ControlSettings

    def visible(self, principal: Principal, tenant: str | None = None, user: str | None = None) -> Sequence[QuotaUse]:
        """The caller's own quotas, in one tenant or all of theirs. Those of another user need a role that shows
        their workloads.

        Raises NotFound, Forbidden.
        """
        principal.need(Scope.READ)
        access = access_of(principal, self.settings)
        wanted = [one for one in access.tenants(Permission.SEE_TENANT) if tenant in (None, one.name)]
        if tenant is not None and not wanted:
            raise NotFound(f"you see no tenant {tenant[:60]!r}", code="tenant-not-found")
        if user not in (None, principal.name):
            for one in wanted:
                access.need(Permission.SEE_WORKLOADS, one.name)
        return [use for one in wanted for use in self.of(one, user or principal.name)]

    def of(self, tenant: Tenant, user: str, environment: str | None = None) -> Iterator[QuotaUse]:
        """All bounds for a user of the tenant; with `environment`, only of that environment."""
        yield from self.shared(tenant, environment)
        yield from self._uses(tenant, QuotaScope.USER, user, tenant.quota.per_user)

    def shared(self, tenant: Tenant, environment: str | None = None) -> Iterator[QuotaUse]:
        """The bounds for all members together."""
        quota = tenant.quota
        yield from self._uses(tenant, QuotaScope.TENANT, tenant.name, quota.nominal)
        for name, bounds in quota.per_environment:
            if environment in (None, name):
                yield from self._uses(tenant, QuotaScope.ENVIRONMENT, name, bounds)
        for name, bounds in quota.per_model:
            yield from self._uses(tenant, QuotaScope.MODEL, name, bounds)

    def of_members(self, tenant: Tenant) -> Iterator[QuotaUse]:
        """The bounds of each member who uses something now or a GPU this month, or stores something."""
        if tenant.quota.per_user == Bounds():
            return
        snapshot, name = self.live_state.snapshot, tenant.name
        users = {owner for owner, _ in self.live_state.waiting(name)}
        users |= snapshot.quotas.members(name) | snapshot.gpu_times.users(name) | self.homes.users(name)
        for user in sorted(users):
            yield from self._uses(tenant, QuotaScope.USER, user, tenant.quota.per_user)

    def _uses(self, tenant: Tenant, scope: QuotaScope, name: str, bounds: Bounds) -> Iterator[QuotaUse]:
        for field, resource in _RESOURCES.items():
            limit = getattr(bounds, field)
            used = None if limit is None else self._used(tenant.name, scope, name, field)
            if limit is None or used is None:
                continue
            lent = scope is QuotaScope.TENANT and getattr(tenant.quota.borrowing, field) != 0
            yield QuotaUse(
                tenant=tenant.name,
                scope=scope,
                name=name,
                resource=resource,
                used=used,
                limit=limit,
                may_borrow=lent and field in ("cpus_milli", "memory_mib", "gpu_milli", "vram_mib"),
                resets_at=self._month_ends() if resource is Resource.GPU_HOURS else None,
            )

    def _month_ends(self) -> float:
        return self.live_state.snapshot.gpu_times.month(self.clock.now())[1]

    def _used(self, tenant: str, scope: QuotaScope, name: str, field: str) -> int | None:
        """None if it has not been measured yet."""
        snapshot = self.live_state.snapshot
        if field == "queued":
            return self.live_limits.queued(tenant, scope, name)
        if field == "storage_mib":
            return self.homes.stored_mib(tenant, name if scope is QuotaScope.USER else None)
        if field == "gpu_s_month":
            return int(snapshot.gpu_times.used_s(tenant, scope, name, self.clock.now()))
        return snapshot.quotas.used(tenant, scope, name)[field]
