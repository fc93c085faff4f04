"""From the domain to the wire: tenants and reservations."""

from __future__ import annotations

from commonage.api.encode import request
from commonage.api.encode_reasons import optional
from commonage.control.queries.tenant_views import TenantView
from commonage.domain.reasons import Reason
from commonage.domain.tenants import Amounts, Bounds, Reservation
from commonage.wire.tenants import AmountsOut, BoundsOut, ReservationOut, TenantOut


def tenant(view: TenantView) -> TenantOut:
    """A tenant now."""
    known, quota = view.tenant, view.tenant.quota
    return TenantOut(
        name=known.name,
        title=known.title,
        weight=known.weight,
        member=view.member,
        sites=list(known.sites),
        environments=list(known.environments),
        nominal=_bounds(quota.nominal),
        borrowing=_bounds(quota.borrowing),
        lending=_bounds(quota.lending),
        per_user=_bounds(quota.per_user),
        held=_amounts(view.held),
        borrowed=_amounts(view.borrowed),
        lent=_amounts(view.lent),
        running=view.running,
        waiting=view.waiting,
        debt_s=view.debt_s,
    )


def reservation(found: Reservation, why: Reason | None = None) -> ReservationOut:
    """A reservation, and why not all of it is kept."""
    return ReservationOut(
        id=found.id,
        tenant=found.tenant,
        title=found.title,
        starts_at=found.starts_at,
        ends_at=found.ends_at,
        count=found.count,
        request=request(found.request),
        owner=found.owner,
        by=found.by,
        reason=optional(why),
    )


def _bounds(found: Bounds) -> BoundsOut:
    return BoundsOut(
        cpus_milli=found.cpus_milli, memory_mib=found.memory_mib, gpu_milli=found.gpu_milli, vram_mib=found.vram_mib
    )


def _amounts(found: Amounts) -> AmountsOut:
    return AmountsOut(
        cpus_milli=found.cpus_milli, memory_mib=found.memory_mib, gpu_milli=found.gpu_milli, vram_mib=found.vram_mib
    )
