"""Bounds on what each tenant may hold at once: its own quota, borrowing, lending and reclaim.

The pass builds `QuotaAccounts` from the allocations, asks `standing` for each request before it looks for a place, and
reports
each start and end; explain.py asks for the `refusal`, the API for `never` before it admits a workload. Victims of a
reclaim are chosen in preemption.py. Allocations within a reservation are not counted: leave them out.

All tenants are one cohort. Of a resource with a nominal bound, a tenant lends what it does not use, at most `lending`;
the loans of all form a pool, from which it also draws its own. So tenants with a bound together never hold more than
the sum of their bounds. (Nominal quota, borrowing and lending limits are Kueue's terms.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from commonage.domain.reasons import Reason, refusals, waiting
from commonage.domain.reasons.waiting import Resource
from commonage.domain.tenants import Amounts, Bounds, Rules, Tenant
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.queued_requests import Held
from commonage.scheduler.model.shapes import NEVER, Bools, Shape

RESOURCES = ("cpus_milli", "memory_mib", "gpu_milli", "vram_mib")
_RESOURCES = (Resource.CPU, Resource.MEMORY, Resource.GPU, Resource.GPU_MEMORY)
GPU, VRAM = 2, 3


class QuotaDecision(StrEnum):
    """The quota standing of more work of a tenant: `own` and `borrowed` may start, the others wait.

    `lent`: it is within the tenant's own quota, but others borrowed that; it comes back by reclaim. `full`: the tenant,
    or its member, has reached its bound.
    """

    OWN = "own"
    BORROWED = "borrowed"
    LENT = "lent"
    FULL = "full"

    @property
    def starts(self) -> bool:
        """True if quotas let it start."""
        return self in (QuotaDecision.OWN, QuotaDecision.BORROWED)


@dataclass(slots=True)
class _Account:
    """The bounds and use of a tenant, by number of resource. `kept` is the part of its own that it does not lend."""

    name: str
    nominal: list[int | None]
    most: list[int | None]  # including what it may borrow
    kept: list[int]
    per_user: list[int | None]
    counted: tuple[int, ...]  # the resources that have a nominal bound
    used: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    def drawn(self, resource: int) -> int:
        """The amount it takes from the pool."""
        return max(0, self.used[resource] - self.kept[resource])

    def own(self, resource: int) -> int:
        """Its nominal bound of a counted resource."""
        return self.nominal[resource] or 0


def _account(tenant: Tenant) -> _Account:
    nominal, borrowing = _listed(tenant.quota.nominal), _listed(tenant.quota.borrowing)
    lending = _listed(tenant.quota.lending)
    most = [None if own is None or more is None else own + more for own, more in zip(nominal, borrowing, strict=True)]
    kept = [
        0 if own is None or lent is None else max(0, own - lent) for own, lent in zip(nominal, lending, strict=True)
    ]
    counted = tuple(resource for resource, own in enumerate(nominal) if own is not None)
    return _Account(tenant.name, nominal, most, kept, _listed(tenant.quota.per_user), counted)


def _listed(bounds: Bounds) -> list[int | None]:
    return [getattr(bounds, name) for name in RESOURCES]


def _vector(amounts: Amounts) -> tuple[int, int, int, int]:
    return (amounts.cpus_milli, amounts.memory_mib, amounts.gpu_milli, amounts.vram_mib)


class QuotaAccounts:
    """The accounts of all tenants. An undeclared tenant has no bounds.

    `pool` is the amount left to draw of each resource; negative after an admin lowered a bound below current use.
    """

    def __init__(self, rules: Rules, held: Iterable[Held] = ()) -> None:
        self._accounts = {tenant.name: _account(tenant) for tenant in rules.tenants}
        self._members: dict[tuple[str, str], list[int]] = {}
        self.pool = [0, 0, 0, 0]
        for account in self._accounts.values():
            for resource in account.counted:
                self.pool[resource] += account.own(resource) - account.kept[resource]
        for one in held:
            self.take(one)

    def take(self, held: Held) -> None:
        """Count an allocation."""
        self._add(held, 1)

    def give(self, held: Held) -> None:
        """Stop counting an allocation that has ended."""
        self._add(held, -1)

    @contextmanager
    def without(self, gone: Iterable[Held]) -> Iterator[None]:
        """Inside the context, these are not counted."""
        away = list(gone)
        for one in away:
            self._add(one, -1)
        try:
            yield
        finally:
            for one in away:
                self._add(one, 1)

    def _add(self, held: Held, sign: int) -> None:
        account = self._of(held.tenant)
        member = self._members.setdefault((held.tenant, held.owner), [0, 0, 0, 0])
        for resource, amount in enumerate(_vector(Amounts.of(held.allocation))):
            member[resource] += sign * amount
            drawn = account.drawn(resource)
            account.used[resource] += sign * amount
            if resource in account.counted:
                self.pool[resource] -= account.drawn(resource) - drawn

    def _of(self, tenant: str) -> _Account:
        found = self._accounts.get(tenant)
        if found is None:
            found = self._accounts[tenant] = _account(Tenant(tenant))
        return found

    # --- what it may --------------------------------------------------------------------------------------------------

    def standing(self, tenant: str, owner: str, amounts: Amounts) -> QuotaDecision:
        """The standing of more work of a tenant's member, in addition to the current allocations."""
        return self._judge(tenant, owner, _vector(amounts))[0]

    def borrows(self, tenant: str) -> bool:
        """True if a tenant holds more of a resource than its own quota."""
        account = self._of(tenant)
        return any(account.used[resource] > account.own(resource) for resource in account.counted)

    def bounded(self, tenant: str) -> bool:
        """True if a tenant has a nominal bound on a resource."""
        return bool(self._of(tenant).counted)

    def mask(self, grid: Grid, shape: Shape, tenant: str, owner: str) -> Bools | None:
        """[N]: the nodes on whose devices the shape stays within quotas; None if the answer is the same for all nodes.

        Only a share by VRAM or of unequal devices takes more on one than on another; `amounts_of` counts the least.
        """
        account = self._of(tenant)
        if not shape.devices or not ({GPU, VRAM} & set(account.counted) or account.per_user[GPU:] != [None, None]):
            return None
        kinds = [kind for kind in range(len(shape.need_milli)) if shape.need_milli[kind] < NEVER]
        lets = [self.standing(tenant, owner, _on_kind(shape, kind)).starts for kind in kinds]
        if all(lets) or not any(lets):
            return None
        bad = np.zeros(len(shape.need_milli), np.bool_)
        bad[[kind for kind, let in zip(kinds, lets, strict=True) if not let]] = True
        allowed: Bools = np.all(~bad[grid.kind], axis=1)
        return allowed

    def _judge(self, tenant: str, owner: str, asked: tuple[int, ...]) -> tuple[QuotaDecision, int]:
        """The standing, and the resource that decided it."""
        account = self._of(tenant)
        over = self._over_member(account, owner, asked)
        if over is not None:
            return QuotaDecision.FULL, over
        borrowed = short = None
        for resource in account.counted:
            if not asked[resource]:
                continue
            used, kept, most = account.used[resource], account.kept[resource], account.most[resource]
            after = used + asked[resource]
            if after > account.own(resource):
                if most is not None and after > most:
                    return QuotaDecision.FULL, resource
                borrowed = resource
            if max(0, after - kept) - max(0, used - kept) > self.pool[resource]:
                short = resource
        if short is not None:
            return (QuotaDecision.LENT if borrowed is None else QuotaDecision.FULL), short
        return (QuotaDecision.OWN, 0) if borrowed is None else (QuotaDecision.BORROWED, borrowed)

    def _over_member(self, account: _Account, owner: str, asked: tuple[int, ...]) -> int | None:
        holds = self._members.get((account.name, owner), (0, 0, 0, 0))
        for resource, bound in enumerate(account.per_user):
            if bound is not None and asked[resource] and holds[resource] + asked[resource] > bound:
                return resource
        return None

    # --- reasons ------------------------------------------------------------------------------------------------------

    def refusal(self, tenant: str, owner: str, amounts: Amounts) -> Reason | None:
        """Why quotas let it wait; None if they let it start."""
        asked = _vector(amounts)
        standing, resource = self._judge(tenant, owner, asked)
        if standing.starts:
            return None
        account = self._of(tenant)
        member = self._over_member(account, owner, asked)
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
        if standing is QuotaDecision.LENT:
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

    def never(self, tenant: str, amounts: Amounts) -> Reason | None:
        """Why a member of the tenant can never hold this amount, even if no other holds anything; None if it can."""
        account, asked = self._of(tenant), _vector(amounts)
        for resource, bound in enumerate(account.per_user):
            if bound is not None and asked[resource] > bound:
                what = _RESOURCES[resource]
                return refusals.UserQuotaTooSmall(tenant=tenant, resource=what, limit=bound, requested=asked[resource])
        for resource in account.counted:
            own, most = account.own(resource), account.most[resource]
            lent = sum(
                other.own(resource) - other.kept[resource]
                for other in self._accounts.values()
                if other is not account and resource in other.counted
            )
            bound = own + lent if most is None else min(most, own + lent)
            if asked[resource] > bound:
                return refusals.QuotaTooSmall(
                    tenant=tenant,
                    resource=_RESOURCES[resource],
                    limit=bound,
                    borrowed=max(0, bound - own),
                    requested=asked[resource],
                )
        return None

    def _unused(self, account: _Account, resource: int) -> int:
        """The amount that others lend and nobody uses."""
        mine = max(0, account.own(resource) - max(account.used[resource], account.kept[resource]))
        return max(0, self.pool[resource] - mine)


def amounts_of(shape: Shape) -> Amounts:
    """The least that a shape takes on any device: known before it has a place."""
    if not shape.devices:
        return Amounts(shape.cpus_milli, shape.memory_mib)
    milli, mib = int(shape.need_milli.min()), int(shape.need_mib.min())
    if milli >= NEVER:
        return Amounts(shape.cpus_milli, shape.memory_mib)
    return Amounts(shape.cpus_milli, shape.memory_mib, milli * shape.devices, mib * shape.devices)


def _on_kind(shape: Shape, kind: int) -> Amounts:
    milli, mib = int(shape.need_milli[kind]), int(shape.need_mib[kind])
    return Amounts(shape.cpus_milli, shape.memory_mib, milli * shape.devices, mib * shape.devices)
