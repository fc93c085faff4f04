"""Tenants: the choice of one for new work, and what its members may use; their quota, allocations and queue.

`access` says who belongs to them. Stores nothing. Used by API and portal, and by submissions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from commonage.control.access import Access, access_of, tenants
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.domain.errors import Forbidden, InvalidInput, NotFound
from commonage.domain.images import Environment
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.tenants import Amounts, Tenant
from commonage.domain.workloads import State
from commonage.ports.clock import Clock


def tenant_of(asked: str | None, owner: Access, caller: Access) -> Tenant:
    """The tenant for work of `owner`, requested by `caller`: often the same, or an admin or the hub's spawner.

    The requested tenant; otherwise the owner's only tenant apart from the default one; otherwise the default. Raises
    Forbidden or InvalidInput, which list the tenants that the caller may choose.
    """
    default = caller.settings.default_tenant
    if asked is None:
        mine = owner.own_tenants()
        own = [tenant for tenant in mine if tenant.name != default]
        return own[0] if len(own) == 1 else next(tenant for tenant in mine if tenant.name == default)
    if caller.may(Permission.SUBMIT):
        return tenant_named(asked, caller.settings)
    if not caller.may(Permission.SUBMIT, asked):
        there = ", ".join(tenant.name for tenant in caller.tenants(Permission.SUBMIT))
        raise Forbidden(
            f"{caller.principal.name} may not submit to {asked[:60]!r}; choose one of: {there}",
            code="not-a-member",
        )
    return tenant_named(asked, caller.settings)


def tenant_named(name: str, settings: ControlSettings) -> Tenant:
    """Raises InvalidInput, which lists all tenants."""
    known = tenants(settings)
    for tenant in known:
        if tenant.name == name:
            return tenant
    names = ", ".join(tenant.name for tenant in known)
    raise InvalidInput(f"there is no tenant {name[:60]!r}; there are: {names}", field="tenant", code="unknown-tenant")


def may_use(tenant: Tenant, environment: Environment) -> bool:
    """True if the tenant's members may use it: it is their own, or global and permitted by the tenant's list.

    In that list, an image's name stands for all of its kernels.
    """
    if environment.tenant is not None:
        return environment.tenant == tenant.name
    listed, name = tenant.environments, environment.name
    return not listed or name in listed or name.rpartition("/")[0] in listed


RESOURCES = tuple(field.name for field in fields(Amounts))


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant now. `borrowed` is its allocation beyond its nominal quota, `lent` the part of the quota that others
    use; both only of resources that have a nominal bound. `waiting` counts its queued workloads. `member`: the caller
    belongs to it. `debt_s` is the recent, decaying usage of its members, in seconds of all nodes: lower debt is
    scheduled first.
    """

    tenant: Tenant
    member: bool
    allocated: Amounts
    borrowed: Amounts
    lent: Amounts
    running: int
    waiting: int
    debt_s: float


@dataclass(frozen=True, slots=True)
class TenantViews:
    live_state: LiveState
    clock: Clock
    settings: ControlSettings

    def all(self, principal: Principal) -> Sequence[TenantView]:
        """The tenants that the caller may see, in the order of the settings, an undeclared default tenant first."""
        principal.need(Scope.READ)
        access = access_of(principal, self.settings)
        seen = {tenant.name for tenant in access.tenants(Permission.SEE_TENANT)}
        known = tenants(self.settings)
        allocated, running = self._allocated()
        lent, debts = lent_by(known, allocated), self._debts()
        waiting: dict[str, int] = defaultdict(int)
        for workload in self.live_state.in_state(State.QUEUED):
            waiting[workload.spec.tenant] += 1
        return [
            TenantView(
                tenant=tenant,
                member=bool(access.roles_in(tenant.name)),
                allocated=allocated.get(tenant.name, Amounts()),
                borrowed=borrowed_by(tenant, allocated.get(tenant.name, Amounts())),
                lent=lent[tenant.name],
                running=running.get(tenant.name, 0),
                waiting=waiting.get(tenant.name, 0),
                debt_s=debts.get(tenant.name, 0.0),
            )
            for tenant in known
            if tenant.name in seen
        ]

    def one(self, principal: Principal, name: str) -> TenantView:
        """One tenant. Raises NotFound, also if the caller may not see it."""
        found = self.all(principal)
        for view in found:
            if view.tenant.name == name:
                return view
        there = ", ".join(view.tenant.name for view in found)
        raise NotFound(f"you see no tenant {name[:60]!r}; there are: {there}", code="tenant-not-found")

    def _debts(self) -> dict[str, float]:
        usage = self.live_state.snapshot.usage
        _, of_tenants = usage.debts(self.clock.now())
        return dict(zip(usage.tenants, of_tenants.tolist(), strict=False))

    def _allocated(self) -> tuple[dict[str, Amounts], dict[str, int]]:
        allocated: dict[str, Amounts] = {}
        running: dict[str, int] = defaultdict(int)
        for workload in self.live_state.in_state(State.STARTING, State.RUNNING):
            if workload.attempt is not None:
                name = workload.spec.tenant
                allocated[name] = allocated.get(name, Amounts()).plus(Amounts.of(workload.attempt.allocation))
                running[name] += 1
        return allocated, running


def borrowed_by(tenant: Tenant, allocated: Amounts) -> Amounts:
    return Amounts(**{name: _beyond(tenant, allocated, name) for name in RESOURCES})


def lent_by(known: Sequence[Tenant], allocated: Mapping[str, Amounts]) -> dict[str, Amounts]:
    """Resources of each tenant that others hold: all borrowed amounts, in proportion to the unused quota of each
    tenant.
    """
    parts: dict[str, dict[str, int]] = {tenant.name: {} for tenant in known}
    for name in RESOURCES:
        borrowed = sum(_beyond(tenant, allocated.get(tenant.name, Amounts()), name) for tenant in known)
        unused = {tenant.name: _lendable(tenant, allocated.get(tenant.name, Amounts()), name) for tenant in known}
        total = sum(unused.values())
        for tenant, amount in unused.items():
            parts[tenant][name] = min(amount, borrowed * amount // total) if total else 0
    return {tenant: Amounts(**amounts) for tenant, amounts in parts.items()}


def _beyond(tenant: Tenant, allocated: Amounts, name: str) -> int:
    nominal = getattr(tenant.quota.nominal, name)
    return 0 if nominal is None else max(0, getattr(allocated, name) - nominal)


def _lendable(tenant: Tenant, allocated: Amounts, name: str) -> int:
    nominal, lending = getattr(tenant.quota.nominal, name), getattr(tenant.quota.lending, name)
    if nominal is None:
        return 0
    unused = max(0, nominal - getattr(allocated, name))
    return int(unused if lending is None else min(unused, lending))
