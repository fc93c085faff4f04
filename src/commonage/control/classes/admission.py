"""Refuses a class whose seats exceed the quota of its tenant, or whose meetings outlast its sessions.

Called when resources change, about classes that changed in what is compared alone: another title needs no room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.workloads.admission import unschedulable_request
from commonage.domain.classes import Class
from commonage.domain.errors import Unschedulable
from commonage.domain.idle import NO_RULE
from commonage.domain.reasons import Reason
from commonage.domain.reasons.classes import ClassBeyondMaxAge, ClassOverQuota
from commonage.domain.reasons.refusals import QuotaLimitTooSmall
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.resources import Platform
from commonage.domain.tenants import Amounts, Bounds, Rules, Tenant
from commonage.scheduler.queue.quota import QuotaAccounts, amounts_of


def check_classes(
    before: Platform, after: Platform, live_state: LiveState, settings: ControlSettings, now: float
) -> None:
    """Raise Unschedulable for a new or changed class that cannot be held."""
    for one in _changed(before, after, lambda one: (_room(one), one.environment)):
        _check_age(one, after, settings, now)
    changed = _changed(before, after, _room)
    if changed:
        _check_seats(changed, after, live_state, now)


def _changed(before: Platform, after: Platform, compared: Callable[[Class], Any]) -> Sequence[Class]:
    known = {one.name: compared(one) for one in before.classes}
    return [one for one in after.classes if one.name not in known or known[one.name] != compared(one)]


def _room(one: Class) -> tuple[Any, ...]:
    """The fields that determine when a class needs room, and how much."""
    return one.tenant, one.request, one.seats, one.times, one.ahead_s, one.grace_s, one.at_end


def _check_age(one: Class, after: Platform, settings: ControlSettings, now: float) -> None:
    """Raise Unschedulable if its sessions reach their maximum age during a meeting."""
    name = one.environment or settings.session_environment
    environment = next((each.idle for each in after.environments if each.name == name), NO_RULE)
    tenant = next((each.idle for each in after.tenants if each.name == one.tenant), NO_RULE)
    most = environment.over(tenant).over(settings.idle).max_age_s
    longest = max((ends_at - starts_at for starts_at, ends_at in one.places(now)), default=0.0)
    if most and longest > most:
        raise Unschedulable(ClassBeyondMaxAge(class_name=one.name, lasts_s=longest, max_age_s=float(most)))


def _check_seats(changed: Iterable[Class], after: Platform, live_state: LiveState, now: float) -> None:
    """Raise Unschedulable for a class that the tenant's quota, or every node, is too small for."""
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
