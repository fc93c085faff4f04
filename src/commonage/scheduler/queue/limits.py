"""Fixed limits of quotas: running workloads, GPU-hours, and all bounds of environments and device models.

quota.py, which holds what tenants lend each other, asks here first. Nothing is borrowed: a request within its limits
starts, any other waits until own work ends or, for GPU-hours, until the next month.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from commonage.domain.reasons import Reason, refusals, waiting
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.tenants import Amounts, Bounds, Rules, Tenant
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import NEVER, AllocatedRequest, QueuedRequest, Shape
from commonage.scheduler.queue.gpu_time import GpuTimes

NUMBERED = ("cpus_milli", "memory_mib", "gpu_milli", "vram_mib", "running")
_RESOURCES = (Resource.CPU, Resource.MEMORY, Resource.GPU, Resource.GPU_MEMORY, Resource.RUNNING)
_RUNNING = 4
Vector = tuple[int, int, int, int, int]
Account = tuple[str, QuotaScope, str]


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit that leaves no room. The amounts of GPU-hours are seconds."""

    scope: QuotaScope
    name: str
    resource: Resource
    used: int
    limit: int
    requested: int = 0


@dataclass(frozen=True, slots=True)
class _Limit:
    """Bounds of one scope: by resource number, and on GPU-seconds of the month."""

    scope: QuotaScope
    most: tuple[int | None, ...]
    gpu_s: int | None

    @property
    def is_set(self) -> bool:
        return self.gpu_s is not None or any(bound is not None for bound in self.most)


def _limit(scope: QuotaScope, bounds: Bounds, *, only_running: bool) -> _Limit:
    """`only_running`: quota.py bounds the other resources."""
    skipped = _RUNNING if only_running else 0
    most = (*(None for _ in NUMBERED[:skipped]), *(getattr(bounds, name) for name in NUMBERED[skipped:]))
    return _Limit(scope, most, bounds.gpu_s_month)


@dataclass(frozen=True, slots=True)
class _TenantLimits:
    tenant: _Limit
    user: _Limit
    environments: dict[str, _Limit]
    models: tuple[tuple[str, _Limit], ...]

    @classmethod
    def of(cls, tenant: Tenant) -> _TenantLimits | None:
        """None if the tenant has no fixed limits."""
        quota = tenant.quota
        made = cls(
            _limit(QuotaScope.TENANT, quota.nominal, only_running=True),
            _limit(QuotaScope.USER, quota.per_user, only_running=True),
            {
                name: _limit(QuotaScope.ENVIRONMENT, bounds, only_running=False)
                for name, bounds in quota.per_environment
            },
            tuple((name, _limit(QuotaScope.MODEL, bounds, only_running=False)) for name, bounds in quota.per_model),
        )
        several = (made.tenant, made.user, *made.environments.values(), *(limit for _, limit in made.models))
        return made if any(limit.is_set for limit in several) else None

    def on_any_node(self, tenant: str, owner: str, environment: str) -> Iterator[tuple[str, _Limit]]:
        """(name, limit) of all bounds of a request that do not depend on its node."""
        if self.tenant.is_set:
            yield tenant, self.tenant
        if self.user.is_set:
            yield owner, self.user
        if environment in self.environments:
            yield environment, self.environments[environment]


class Limits:
    """The fixed limits of all tenants, and what counts towards them. `set_time` first: months end."""

    def __init__(self, rules: Rules, gpu_times: GpuTimes, grid: Grid) -> None:
        self._rules = rules
        found = ((tenant.name, _TenantLimits.of(tenant)) for tenant in rules.tenants)
        self._of = {name: limits for name, limits in found if limits is not None}
        self._gpu_times, self._grid = gpu_times, grid
        self._used: defaultdict[Account, list[int]] = defaultdict(lambda: [0] * len(NUMBERED))
        self._now = 0.0
        self.by_environment = any(limits.environments for limits in self._of.values())

    def set_time(self, now: float) -> None:
        self._now = now

    def add(self, allocated: AllocatedRequest, sign: int) -> None:
        limits = self._of.get(allocated.tenant)
        if limits is None:
            return
        amounts = _vector(Amounts.of(allocated.allocation), 1)
        for name, limit in limits.on_any_node(allocated.tenant, allocated.owner, allocated.environment):
            self._add((allocated.tenant, limit.scope, name), amounts, sign)
        for name, _ in limits.models:
            shares = [share for share in allocated.allocation.shares if _is_of(name, share.model)]
            if shares:
                milli, mib = sum(share.compute_milli for share in shares), sum(share.memory_mib for share in shares)
                self._add((allocated.tenant, QuotaScope.MODEL, name), (0, 0, milli, mib, 1), sign)

    def _add(self, account: Account, amounts: Vector, sign: int) -> None:
        used = self._used[account]
        for resource, amount in enumerate(amounts):
            used[resource] += sign * amount

    # --- decisions ----------------------------------------------------------------------------------------------------

    def exceeded(self, queued: QueuedRequest, shape: Shape, amounts: Amounts, members: int) -> Exceeded | None:
        """The first limit that leaves no room for the members of a request; None if it may start.

        `amounts` are the least that it takes on any device. Every device model that matches must be at its limit.
        """
        limits = self._of.get(queued.tenant)
        if limits is None:
            return None
        requested = _vector(amounts, members)
        for name, limit in limits.on_any_node(queued.tenant, queued.owner, queued.environment):
            over = self._over(queued.tenant, name, limit, requested)
            if over is not None:
                return over
        first = None
        for kind in self._kinds(limits, shape):
            over = self._over_on(limits, queued, shape, kind, members)
            if over is None:
                return None
            first = first or over
        return first

    def is_spent(self, queued: QueuedRequest, shape: Shape, amounts: Amounts) -> bool:
        """Whether the GPU-hours that a request needs are spent, so that no end of other work lets it start."""
        over = self.exceeded(queued, shape, amounts, 0) if queued.tenant in self._of else None
        return over is not None and over.resource is Resource.GPU_HOURS

    def gpu_time_left(self, allocated: AllocatedRequest, now: float) -> float | None:
        """Seconds until an allocation alone has used up the GPU-hours of its limits; None if they last all month."""
        limits, shares = self._of.get(allocated.tenant), allocated.allocation.shares
        gpus = sum(share.compute_milli for share in shares) / 1000
        if limits is None or not gpus:
            return None
        several = list(limits.on_any_node(allocated.tenant, allocated.owner, allocated.environment))
        several += [(name, limit) for name, limit in limits.models if any(_is_of(name, one.model) for one in shares)]
        left = [
            max(0.0, limit.gpu_s - self._gpu_times.used_s(allocated.tenant, limit.scope, name, now)) / gpus
            for name, limit in several
            if limit.gpu_s is not None
        ]
        resets_in_s = self._gpu_times.month(now)[1] - now
        return min((one for one in left if one < resets_in_s), default=None)

    def bounds_kinds(self, tenant: str, environment: str) -> bool:
        """Whether the answer of `allows_kind` may differ by device."""
        limits = self._of.get(tenant)
        return limits is not None and bool(limits.models or environment in limits.environments)

    def allows_kind(self, queued: QueuedRequest, shape: Shape, kind: int, members: int) -> bool:
        """Whether all members of a request may start on devices of one kind."""
        limits = self._of.get(queued.tenant)
        if limits is None:
            return True
        requested = _vector(on_kind(shape, kind, members), members)
        several = limits.on_any_node(queued.tenant, queued.owner, queued.environment)
        if any(self._over(queued.tenant, name, limit, requested) is not None for name, limit in several):
            return False
        return self._over_on(limits, queued, shape, kind, members) is None

    def _kinds(self, limits: _TenantLimits, shape: Shape) -> list[int]:
        if not limits.models or not shape.devices:
            return []
        return [kind for kind in range(len(self._grid.kinds)) if shape.need_milli[kind] < NEVER]

    def _over_on(
        self, limits: _TenantLimits, queued: QueuedRequest, shape: Shape, kind: int, members: int
    ) -> Exceeded | None:
        model = self._grid.kinds[kind][0].model
        amounts = on_kind(shape, kind, members)
        requested = (0, 0, amounts.gpu_milli, amounts.vram_mib, members)
        for name, limit in limits.models:
            if _is_of(name, model):
                over = self._over(queued.tenant, name, limit, requested)
                if over is not None:
                    return over
        return None

    def _over(self, tenant: str, name: str, limit: _Limit, requested: Vector) -> Exceeded | None:
        used = self._used.get((tenant, limit.scope, name), (0,) * len(NUMBERED))
        for resource, bound in enumerate(limit.most):
            if bound is not None and requested[resource] and used[resource] + requested[resource] > bound:
                return Exceeded(limit.scope, name, _RESOURCES[resource], used[resource], bound, requested[resource])
        if limit.gpu_s is not None and requested[2]:
            spent = self._gpu_times.used_s(tenant, limit.scope, name, self._now)
            if spent >= limit.gpu_s:
                return Exceeded(limit.scope, name, Resource.GPU_HOURS, int(spent), limit.gpu_s)
        return None

    # --- reasons ------------------------------------------------------------------------------------------------------

    def refusal(self, queued: QueuedRequest, shape: Shape, amounts: Amounts, members: int) -> Reason | None:
        """Why a request waits; None if no limit holds it."""
        over = self.exceeded(queued, shape, amounts, members)
        if over is None:
            return None
        if over.resource is Resource.GPU_HOURS:
            return waiting.GpuHoursSpent(
                tenant=queued.tenant,
                scope=over.scope,
                name=over.name,
                used_s=over.used,
                limit_s=over.limit,
                resets_at=self._gpu_times.month(self._now)[1],
            )
        return waiting.QuotaLimitReached(
            tenant=queued.tenant,
            scope=over.scope,
            name=over.name,
            resource=over.resource,
            used=over.used,
            limit=over.limit,
        )

    def unsatisfiable_reason(
        self, queued: QueuedRequest, shape: Shape, amounts: Amounts, members: int
    ) -> Reason | None:
        """Why a request can never start, even if nothing runs; None if it can. Spent GPU-hours come back."""
        if queued.tenant not in self._of:
            return None
        empty = Limits(self._rules, GpuTimes(self._gpu_times.time_zone), self._grid)
        over = empty.exceeded(queued, shape, amounts, members)
        if over is None:
            return None
        return refusals.QuotaLimitTooSmall(
            tenant=queued.tenant,
            scope=over.scope,
            name=over.name,
            resource=over.resource,
            limit=over.limit,
            requested=over.requested,
        )

    def used(self, tenant: str, scope: QuotaScope, name: str) -> dict[str, int]:
        """The amounts that count towards the limits of one scope, by the names of the bounds."""
        found = self._used.get((tenant, scope, name), [0] * len(NUMBERED))
        return dict(zip(NUMBERED, found, strict=True))


def _vector(amounts: Amounts, members: int) -> Vector:
    return (amounts.cpus_milli, amounts.memory_mib, amounts.gpu_milli, amounts.vram_mib, members)


def on_kind(shape: Shape, kind: int, members: int = 1) -> Amounts:
    """The amounts that the members of a gang take on devices of one kind."""
    milli, mib, devices = int(shape.need_milli[kind]), int(shape.need_mib[kind]), shape.devices * members
    return Amounts(shape.cpus_milli * members, shape.memory_mib * members, milli * devices, mib * devices)


def _is_of(name: str, model: str) -> bool:
    return name.casefold() in model.casefold()
