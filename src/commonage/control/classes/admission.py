"""Refuses a class whose seats exceed the quota of its tenant. Called when resources change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from commonage.control.state.live_state import LiveState
from commonage.control.workloads.admission import unschedulable_request
from commonage.domain.classes import Class
from commonage.domain.errors import Unschedulable
from commonage.domain.reasons import Reason
from commonage.domain.reasons.classes import ClassOverQuota
from commonage.domain.reasons.refusals import QuotaLimitTooSmall
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.resources import Platform
from commonage.domain.tenants import Amounts, Bounds, Rules, Tenant
from commonage.scheduler.queue.quota import QuotaAccounts, amounts_of


def check_seats(before: Platform, after: Platform, live_state: LiveState, now: float) -> None:
    """Raise Unschedulable for a new or changed class that the tenant's quota, or every node, is too small for."""
    known = {one.name: one for one in before.classes}
    changed = [one for one in after.classes if known.get(one.name) != one]
    if not changed:
        return
    grid = live_state.snapshot.grid
    rules = replace(live_state.snapshot.rules, tenants=tuple(map(_for_all, after.tenants)))
    bounds = {one.name: one.quota for one in after.tenants}
    for one in changed:
        sites = Rules(after.tenants, sites=after.sites).sites_of(one.tenant)
        never = unschedulable_request(live_state, replace(one.request, sites=sites)) if len(grid.nodes) else None
        never = never or _too_small(QuotaAccounts(Rules(after.tenants), grid=grid), one, _of_seats(one, 1, live_state))
        if never is not None:
            raise Unschedulable(never)
        quota, accounts = bounds.get(one.tenant), QuotaAccounts(rules, grid=grid)
        others = [other for other in after.classes if other.tenant == one.tenant and other.name != one.name]
        for starts_at, total, seats in _totals(one, others, live_state, now):
            cause = _too_small(accounts, one, total)
            running = None if quota is None else quota.nominal.running
            if cause is None and running is not None and seats > running:
                cause = QuotaLimitTooSmall(
                    tenant=one.tenant,
                    scope=QuotaScope.TENANT,
                    name=one.tenant,
                    resource=Resource.RUNNING,
                    limit=running,
                    requested=seats,
                )
            if cause is not None:
                raise Unschedulable(
                    ClassOverQuota(
                        class_name=one.name, tenant=one.tenant, seats=one.seats, starts_at=starts_at, cause=cause
                    )
                )


def _for_all(tenant: Tenant) -> Tenant:
    """The tenant without the bounds of each member, which hold for each seat alone."""
    return replace(tenant, quota=replace(tenant.quota, per_user=Bounds()))


def _too_small(accounts: QuotaAccounts, one: Class, amounts: Amounts) -> Reason | None:
    return accounts.unsatisfiable_reason(one.tenant, amounts)


def _of_seats(one: Class, seats: int, live_state: LiveState) -> Amounts:
    return amounts_of(live_state.snapshot.grid.shape(one.request), seats)


def _totals(
    one: Class, others: Iterable[Class], live_state: LiveState, now: float
) -> Iterator[tuple[float, Amounts, int]]:
    """For each meeting: its start, and what its seats take with those of other classes of the tenant at that time.

    Counts all others that are on at any moment of the meeting.
    """
    mine = _of_seats(one, one.seats, live_state)
    rest = list(others)
    for starts_at, ends_at in one.places(now):
        total, seats = mine, one.seats
        for other in rest:
            if any(begin < ends_at and starts_at < end for begin, end in other.places(now)):
                total = total.plus(_of_seats(other, other.seats, live_state))
                seats += other.seats
        yield starts_at, total, seats
