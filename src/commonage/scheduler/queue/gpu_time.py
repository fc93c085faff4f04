"""GPU time of this calendar month by tenant, user, environment and device model: GPU-hours of quotas.

The live state reports each allocation that begins and ends. Each account keeps the rate at which its GPU time grows now
and a sum that only begins and ends change, so that a reading costs the same for one allocation as for ten thousand. The
sums of attempts that ended before the server started come from the store. Agrees with the usage query of the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from commonage.domain.months import month_of
from commonage.domain.nodes import Allocation
from commonage.domain.reasons.waiting import QuotaScope
from commonage.domain.usage import GpuTime

Account = tuple[str, QuotaScope, str]
"""Tenant, scope, and the name of the tenant, user, environment or device model."""


class GpuTimes:
    """GPU time of the current month. Its methods take any time; one beyond the end of the month begins the next."""

    def __init__(self, time_zone: str) -> None:
        self.time_zone = time_zone
        self._month = (0.0, 0.0)
        self._rate: defaultdict[Account, int] = defaultdict(int)  # thousandths of GPUs held now
        self._sum: defaultdict[Account, float] = defaultdict(float)  # milli-GPU-seconds; see `_at`
        self._open: dict[str, tuple[tuple[Account, int], ...]] = {}
        self._models: defaultdict[str, set[str]] = defaultdict(set)

    def begin(self, tenant: str, owner: str, environment: str, allocation: Allocation) -> None:
        if allocation.attempt_id in self._open or not allocation.shares:
            return
        by_model: defaultdict[str, int] = defaultdict(int)
        for share in allocation.shares:
            by_model[share.model] += share.compute_milli
        at = self._at(allocation.at)
        parts = tuple(
            (account, milli)
            for model, milli in by_model.items()
            for account in self._accounts(tenant, owner, environment, model)
        )
        self._open[allocation.attempt_id] = parts
        for account, milli in parts:
            self._rate[account] += milli
            self._sum[account] -= milli * at

    def end(self, attempt_id: str, at: float) -> None:
        parts = self._open.pop(attempt_id, ())
        since = self._at(at)
        for account, milli in parts:
            self._rate[account] -= milli
            self._sum[account] += milli * since

    def rename(self, tenant: tuple[str, str] | None, owner: tuple[str, str] | None) -> None:
        """Move the usage of tenants and owners to their new names: (before, after). None of their workloads may run
        now.
        """
        for account in list(self._sum):
            of_tenant, scope, name = account
            if tenant is not None and of_tenant == tenant[0]:
                of_tenant, name = tenant[1], tenant[1] if scope is QuotaScope.TENANT else name
            if owner is not None and scope is QuotaScope.USER and name == owner[0]:
                name = owner[1]
            if (of_tenant, scope, name) != account:
                self._sum[of_tenant, scope, name] += self._sum.pop(account)
        if tenant is not None:
            self._models[tenant[1]] |= self._models.pop(tenant[0], set())

    def load(self, sums: Iterable[GpuTime], now: float) -> None:
        """Add the GPU time of attempts that ended this month."""
        self._at(now)
        for one in sums:
            for account in self._accounts(one.tenant, one.owner, one.environment, one.model):
                self._sum[account] += one.gpu_milli_s

    def used_s(self, tenant: str, scope: QuotaScope, name: str, now: float) -> float:
        """GPU-seconds of the month of `now`. The name of a device model is any part of it, in any case."""
        if scope is QuotaScope.MODEL:
            part = name.casefold()
            models = [model for model in self._models[tenant] if part in model.casefold()]
            return sum(self._used((tenant, scope, model), now) for model in models)
        return self._used((tenant, scope, name), now)

    def users(self, tenant: str) -> set[str]:
        """The users with GPU time this month."""
        held = {account for account, rate in self._rate.items() if rate}
        return {name for of, scope, name in held.union(self._sum) if of == tenant and scope is QuotaScope.USER}

    def month(self, now: float) -> tuple[float, float]:
        begins, ends = self._month
        return self._month if begins <= now < ends else month_of(now, self.time_zone)

    def _used(self, account: Account, now: float) -> float:
        begins, ends = self._month
        rate = self._rate.get(account, 0)
        if now >= ends:  # what is held now was held since the month began; the next change moves the month
            return rate * (now - self.month(now)[0]) / 1000
        return max(0.0, (rate * (now - begins) + self._sum.get(account, 0.0)) / 1000)

    def _accounts(self, tenant: str, owner: str, environment: str, model: str) -> tuple[Account, ...]:
        self._models[tenant].add(model)
        return (
            (tenant, QuotaScope.TENANT, tenant),
            (tenant, QuotaScope.USER, owner),
            (tenant, QuotaScope.ENVIRONMENT, environment),
            (tenant, QuotaScope.MODEL, model),
        )

    def _at(self, at: float) -> float:
        """Seconds since the month began, at least 0. Begins the next month at its first instant."""
        if at >= self._month[1]:
            self._month = month_of(at, self.time_zone)
            self._sum.clear()
        return max(0.0, at - self._month[0])
