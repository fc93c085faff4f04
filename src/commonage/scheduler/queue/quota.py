"""Quotas: the resources that a tenant may hold at once.

The pass asks `decision` for each request before it looks for nodes, and reports each start and end. explain.py asks for
the `reason`, admission for the `never_reason`. Allocations within a reservation do not count. Limits that are not lent
are in limits.py.

All tenants form one cohort, with nominal quota, borrowing limit and lending limit as in Kueue. A tenant lends the
nominal quota that it does not use, at most its lending limit. All loans form a pool, from which a tenant also draws its
own lendable quota. So tenants with quotas together never hold more than the sum of their nominal quotas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from commonage.domain.reasons import Reason, refusals, waiting
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.tenants import Amounts, Bounds, Rules, Tenant
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import NEVER, AllocatedRequest, Bools, QueuedRequest, Shape
from commonage.scheduler.queue.gpu_time import GpuTimes
from commonage.scheduler.queue.limits import Limits, on_kind

RESOURCES = ("cpus_milli", "memory_mib", "gpu_milli", "vram_mib")
_RESOURCES = (Resource.CPU, Resource.MEMORY, Resource.GPU, Resource.GPU_MEMORY)
GPU, VRAM = 2, 3


class QuotaDecision(StrEnum):
    """`own` and `borrowed` may start, the others wait.

    `reclaimable`: within the tenant's nominal quota, but others borrowed it; reclaim returns it. `exhausted`: the
    tenant or user has reached a limit.
    """

    OWN = "own"
    BORROWED = "borrowed"
    RECLAIMABLE = "reclaimable"
    EXHAUSTED = "exhausted"

    @property
    def starts(self) -> bool:
        return self in (QuotaDecision.OWN, QuotaDecision.BORROWED)


@dataclass(slots=True)
class _Account:
    """Quota and use of a tenant by resource number. `guaranteed`: the part of the nominal quota that it never lends."""

    name: str
    nominal: list[int | None]
    most: list[int | None]  # nominal quota plus borrowing limit
    guaranteed: list[int]
    per_user: list[int | None]
    counted: tuple[int, ...]  # resources with a nominal quota
    used: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    def drawn(self, resource: int) -> int:
        """The amount drawn from the pool."""
        return max(0, self.used[resource] - self.guaranteed[resource])

    def own(self, resource: int) -> int:
        return self.nominal[resource] or 0


def _account(tenant: Tenant) -> _Account:
    nominal, borrowing = _by_resource(tenant.quota.nominal), _by_resource(tenant.quota.borrowing)
    lending = _by_resource(tenant.quota.lending)
    most = [None if own is None or more is None else own + more for own, more in zip(nominal, borrowing, strict=True)]
    guaranteed = [
        0 if own is None or lent is None else max(0, own - lent) for own, lent in zip(nominal, lending, strict=True)
    ]
    counted = tuple(resource for resource, own in enumerate(nominal) if own is not None)
    return _Account(tenant.name, nominal, most, guaranteed, _by_resource(tenant.quota.per_user), counted)


def _by_resource(bounds: Bounds) -> list[int | None]:
    return [getattr(bounds, name) for name in RESOURCES]


def _vector(amounts: Amounts) -> tuple[int, int, int, int]:
    return (amounts.cpus_milli, amounts.memory_mib, amounts.gpu_milli, amounts.vram_mib)


class QuotaAccounts:
    """The quotas and use of all tenants. An undeclared tenant has no quota.

    `pool` is the amount of each resource left to draw; negative after an admin lowered a quota below current use.
    """

    def __init__(
        self,
        rules: Rules,
        allocated: Iterable[AllocatedRequest] = (),
        gpu_times: GpuTimes | None = None,
        grid: Grid | None = None,
    ) -> None:
        self.limits = Limits(rules, gpu_times or GpuTimes(rules.time_zone), grid or Grid(()))
        self._accounts = {tenant.name: _account(tenant) for tenant in rules.tenants}
        self._members: dict[tuple[str, str], list[int]] = {}
        self.pool = [0, 0, 0, 0]
        for account in self._accounts.values():
            for resource in account.counted:
                self.pool[resource] += account.own(resource) - account.guaranteed[resource]
        for request in allocated:
            self.take(request)

    def take(self, allocated: AllocatedRequest) -> None:
        self._add(allocated, 1)

    def give(self, allocated: AllocatedRequest) -> None:
        self._add(allocated, -1)

    @contextmanager
    def excluding(self, allocated: Iterable[AllocatedRequest]) -> Iterator[None]:
        excluded = list(allocated)
        for request in excluded:
            self._add(request, -1)
        try:
            yield
        finally:
            for request in excluded:
                self._add(request, 1)

    def _add(self, allocated: AllocatedRequest, sign: int) -> None:
        self.limits.add(allocated, sign)
        account = self._account_of(allocated.tenant)
        member = self._members.setdefault((allocated.tenant, allocated.owner), [0, 0, 0, 0])
        for resource, amount in enumerate(_vector(Amounts.of(allocated.allocation))):
            member[resource] += sign * amount
            drawn = account.drawn(resource)
            account.used[resource] += sign * amount
            if resource in account.counted:
                self.pool[resource] -= account.drawn(resource) - drawn

    def _account_of(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _account(Tenant(tenant))
        return account

    # --- decisions --------------------------------------------------------------------------------------------------

    def decision(self, queued: QueuedRequest, shape: Shape, members: int) -> QuotaDecision:
        """Whether the members of a request may start, and why."""
        amounts = amounts_of(shape, members)
        if self.limits.exceeded(queued, shape, amounts, members) is not None:
            return QuotaDecision.EXHAUSTED
        return self.decide(queued.tenant, queued.owner, amounts)

    def decide(self, tenant: str, owner: str, amounts: Amounts) -> QuotaDecision:
        """Whether a user of a tenant may hold `amounts` more, and why."""
        return self._decide(tenant, owner, _vector(amounts))[0]

    def borrows(self, tenant: str) -> bool:
        account = self._account_of(tenant)
        return any(account.used[resource] > account.own(resource) for resource in account.counted)

    def has_quota(self, tenant: str) -> bool:
        return bool(self._account_of(tenant).counted)

    def nodes_within_quota(self, grid: Grid, queued: QueuedRequest, shape: Shape, members: int = 1) -> Bools | None:
        """[N]: the nodes on which the shape stays within quota; None if the answer is the same for all nodes.

        Only shares by VRAM, or of unequal devices, take different amounts on different devices; `amounts_of` counts the
        least. Of a gang, a limit by device model counts all members.
        """
        account = self._account_of(queued.tenant)
        is_limited = self.limits.bounds_kinds(queued.tenant, queued.environment)
        is_counted = bool({GPU, VRAM} & set(account.counted)) or account.per_user[GPU:] != [None, None]
        if not shape.devices or not (is_counted or is_limited):
            return None
        kinds = [kind for kind in range(len(shape.need_milli)) if shape.need_milli[kind] < NEVER]
        lets = [
            self.decide(queued.tenant, queued.owner, on_kind(shape, kind)).starts
            and (not is_limited or self.limits.allows_kind(queued, shape, kind, members))
            for kind in kinds
        ]
        if all(lets) or not (is_limited or any(lets)):
            return None
        bad = np.zeros(len(shape.need_milli), np.bool_)
        bad[[kind for kind, let in zip(kinds, lets, strict=True) if not let]] = True
        allowed: Bools = np.all(~bad[grid.kind], axis=1)
        return allowed

    def _decide(self, tenant: str, owner: str, requested: tuple[int, ...]) -> tuple[QuotaDecision, int]:
        account = self._account_of(tenant)
        over = self._over_member(account, owner, requested)
        if over is not None:
            return QuotaDecision.EXHAUSTED, over
        borrowed = short = None
        for resource in account.counted:
            if not requested[resource]:
                continue
            used, guaranteed, most = account.used[resource], account.guaranteed[resource], account.most[resource]
            after = used + requested[resource]
            if after > account.own(resource):
                if most is not None and after > most:
                    return QuotaDecision.EXHAUSTED, resource
                borrowed = resource
            if max(0, after - guaranteed) - max(0, used - guaranteed) > self.pool[resource]:
                short = resource
        if short is not None:
            return (QuotaDecision.RECLAIMABLE if borrowed is None else QuotaDecision.EXHAUSTED), short
        return (QuotaDecision.OWN, 0) if borrowed is None else (QuotaDecision.BORROWED, borrowed)

    def _over_member(self, account: _Account, owner: str, requested: tuple[int, ...]) -> int | None:
        holds = self._members.get((account.name, owner), (0, 0, 0, 0))
        for resource, bound in enumerate(account.per_user):
            if bound is not None and requested[resource] and holds[resource] + requested[resource] > bound:
                return resource
        return None

    # --- reasons ------------------------------------------------------------------------------------------------------

    def reason(self, queued: QueuedRequest, shape: Shape, members: int) -> Reason | None:
        """The quota reason why the members of a request wait; None if they may start."""
        amounts = amounts_of(shape, members)
        found = self.limits.refusal(queued, shape, amounts, members)
        return self.refusal(queued.tenant, queued.owner, amounts) if found is None else found

    def never_reason(self, queued: QueuedRequest, shape: Shape, members: int) -> Reason | None:
        """Why the members of a request can never start, even on an idle cluster; None if they can."""
        amounts = amounts_of(shape, members)
        found = self.limits.unsatisfiable_reason(queued, shape, amounts, members)
        return self.unsatisfiable_reason(queued.tenant, amounts) if found is None else found

    def members(self, tenant: str) -> set[str]:
        """The users who hold or held something since the rules changed."""
        return {owner for name, owner in self._members if name == tenant}

    def used(self, tenant: str, scope: QuotaScope, name: str) -> dict[str, int]:
        """The amounts that count towards the bounds of one scope now, by their names."""
        found = self.limits.used(tenant, scope, name)
        if scope is QuotaScope.TENANT:
            found |= zip(RESOURCES, self._account_of(tenant).used, strict=True)
        elif scope is QuotaScope.USER:
            found |= zip(RESOURCES, self._members.get((tenant, name), [0, 0, 0, 0]), strict=True)
        return found

    def refusal(self, tenant: str, owner: str, amounts: Amounts) -> Reason | None:
        """The quota reason why a request waits; None if it may start."""
        requested = _vector(amounts)
        decision, resource = self._decide(tenant, owner, requested)
        if decision.starts:
            return None
        account = self._account_of(tenant)
        member = self._over_member(account, owner, requested)
        if member is not None:
            holds = self._members.get((tenant, owner), [0, 0, 0, 0])[member]
            return waiting.UserQuotaExceeded(
                tenant=tenant,
                user=owner,
                resource=_RESOURCES[member],
                used=holds,
                limit=account.per_user[member] or 0,
            )
        used, own, most = account.used[resource], account.own(resource), account.most[resource]
        if decision is QuotaDecision.RECLAIMABLE:
            left = max(0, self.pool[resource])
            return waiting.QuotaLent(tenant=tenant, resource=_RESOURCES[resource], used=used, quota=own, left=left)
        return waiting.QuotaExceeded(
            tenant=tenant,
            resource=_RESOURCES[resource],
            used=used,
            quota=own,
            borrowing=None if most is None else most - own,
            unused=self._unused(account, resource),
        )

    def unsatisfiable_reason(self, tenant: str, amounts: Amounts) -> Reason | None:
        """Why a user of the tenant can never hold `amounts`, even on an idle cluster; None if it can."""
        account, requested = self._account_of(tenant), _vector(amounts)
        for resource, bound in enumerate(account.per_user):
            if bound is not None and requested[resource] > bound:
                name = _RESOURCES[resource]
                return refusals.UserQuotaTooSmall(
                    tenant=tenant, resource=name, limit=bound, requested=requested[resource]
                )
        for resource in account.counted:
            own, most = account.own(resource), account.most[resource]
            lent = sum(
                other.own(resource) - other.guaranteed[resource]
                for other in self._accounts.values()
                if other is not account and resource in other.counted
            )
            bound = own + lent if most is None else min(most, own + lent)
            if requested[resource] > bound:
                return refusals.QuotaTooSmall(
                    tenant=tenant,
                    resource=_RESOURCES[resource],
                    limit=bound,
                    borrowed=max(0, bound - own),
                    requested=requested[resource],
                )
        return None

    def _unused(self, account: _Account, resource: int) -> int:
        mine = max(0, account.own(resource) - max(account.used[resource], account.guaranteed[resource]))
        return max(0, self.pool[resource] - mine)


def amounts_of(shape: Shape, members: int = 1) -> Amounts:
    """The least that the members of a gang take on any device: known before placement."""
    cpus_milli, memory_mib = shape.cpus_milli * members, shape.memory_mib * members
    milli = int(shape.need_milli.min()) if shape.devices else NEVER
    if milli >= NEVER:
        return Amounts(cpus_milli, memory_mib)
    devices = shape.devices * members
    return Amounts(cpus_milli, memory_mib, milli * devices, int(shape.need_mib.min()) * devices)
