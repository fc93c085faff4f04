"""Routes of tenants and of their reservations, which admins create and cancel."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from commonage import messages
from commonage.api.fill import fill, optional_reason, reason
from commonage.api.routes.workloads import parse_gpu_request, request_out
from commonage.api.routing import BODY, QUERY, Guarded, asks, body_of, caller, context, problems, read_json
from commonage.control.control import Control
from commonage.control.reservations import Wanted
from commonage.control.settings import ControlSettings
from commonage.control.tenants import TenantView
from commonage.domain.codec import to_json
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import QuotaUse
from commonage.domain.requests import Request as ResourceRequest
from commonage.domain.requests import parse_cpus, parse_labels
from commonage.domain.tenants import Reservation
from commonage.domain.time_zones import zone_of
from commonage.domain.windows import window_of, windows
from commonage.wire.tenants import (
    QuotaList,
    QuotaOut,
    QuotaQuery,
    ReservationIn,
    ReservationList,
    ReservationOut,
    ReservedOut,
    TenantList,
    TenantOut,
)

router = APIRouter(route_class=Guarded)


@router.get("/tenants", tags=["tenants"], summary="List tenants", responses=problems())
@asks(Permission.SEE_TENANT)
async def list_tenants(request: Request) -> TenantList:
    """Your tenants, with their quotas, allocated, borrowed and lent resources, and the length of their queues.

    Admins see all tenants.
    """
    control, principal = context(request).control, caller(request)
    return TenantList(items=[_tenant_out(view, control, principal) for view in control.tenants.all(principal)])


@router.get("/tenants/{name:path}", tags=["tenants"], summary="Show a tenant", responses=problems("tenant-not-found"))
@asks(Permission.SEE_TENANT)
async def one_tenant(request: Request, name: str) -> TenantOut:
    """One tenant, with its quotas and its allocated, borrowed and lent resources."""
    control, principal = context(request).control, caller(request)
    return _tenant_out(control.tenants.one(principal, name), control, principal)


@router.get(
    "/quotas",
    tags=["tenants"],
    summary="Show what quotas leave",
    responses=problems(*QUERY, "tenant-not-found"),
)
@asks(Permission.SEE_TENANT)
async def quotas(request: Request, query: Annotated[QuotaQuery, Query()]) -> QuotaList:
    """Each quota and limit that applies to you in your tenants, with the used and the remaining amount.

    A role that shows the workloads of others also shows their quotas.
    """
    found = context(request).control.quota_uses.visible(caller(request), query.tenant, query.user)
    return QuotaList(items=[_quota_out(one) for one in found])


def _quota_out(use: QuotaUse) -> QuotaOut:
    return QuotaOut(**to_json(use)["params"], remains=use.remains, percent=use.percent, text=messages.text(use))


def _tenant_out(view: TenantView, control: Control, principal: Principal) -> TenantOut:
    uses = control.quota_uses.of(view.tenant, principal.name)
    return fill(TenantOut, view, view.tenant, view.tenant.quota, quotas=[reason(one) for one in uses])


_EXAMPLE = {
    "tenant": "course",
    "starts_at": "2026-11-24 14:00",
    "ends_at": "16:00",
    "time_zone": "Europe/Berlin",
    "count": 50,
    "gpus": "4GiB",
    "title": "class",
}


@router.get("/reservations", tags=["reservations"], summary="List reservations", responses=problems())
@asks(Permission.SEE_TENANT)
async def list_reservations(request: Request) -> ReservationList:
    """Current and future reservations of your tenants; admins see those of all tenants."""
    reservations = context(request).control.reservations
    found = reservations.visible(caller(request))
    return ReservationList(items=[_reservation_out(one, reservations.shortfalls(one)) for one in found])


@router.post(
    "/reservations",
    tags=["reservations"],
    status_code=201,
    summary="Reserve resources for a tenant",
    responses={
        **problems(
            *BODY, "invalid-memory", "invalid-cpus", "invalid-gpus", "invalid-label", "unknown-tenant", "unschedulable",
            "conflict", "reservation-conflict",
        ),
        201: {"description": "Created, and durable."},
    },
    openapi_extra=body_of(ReservationIn, _EXAMPLE),
)  # fmt: skip
@asks(Permission.RESERVE)
async def reserve(request: Request) -> ReservedOut:
    """Reserve resources in a window of time, once or repeatedly. For admins.

    Refused if the cluster cannot provide them in addition to the existing reservations. `reason` names running
    workloads that may be in the way.
    """
    control, principal = context(request).control, caller(request)
    body = await read_json(request, ReservationIn)
    made = await control.reservations.add(principal, parse_reservation(body, control.clock.now(), control.settings))
    items = [_reservation_out(one) for one in made.reservations]
    return ReservedOut(items=items, reason=optional_reason(made.shortfalls))


@router.delete(
    "/reservations/{reservation_id}",
    tags=["reservations"],
    summary="Cancel a reservation",
    responses=problems("reservation-not-found"),
)
@asks(Permission.RESERVE)
async def remove(request: Request, reservation_id: str) -> ReservationOut:
    """Workloads that started within it continue. For admins."""
    found = await context(request).control.reservations.remove(caller(request), reservation_id)
    return _reservation_out(found)


def _reservation_out(reservation: Reservation, shortfall: Reason | None = None) -> ReservationOut:
    return fill(
        ReservationOut, reservation, request=request_out(reservation.request), reason=optional_reason(shortfall)
    )


def parse_reservation(body: ReservationIn, now: float, settings: ControlSettings) -> Wanted:
    """The requested reservation. Raises InvalidInput with the code of the field."""
    begin, end = window_of(body.starts_at, body.ends_at, zone_of(body.time_zone), now)
    return Wanted(
        tenant=body.tenant,
        windows=windows(begin, end, body.every, body.last_day),
        request=ResourceRequest(
            settings.default_cpus_milli if body.cpus is None else parse_cpus(body.cpus),
            settings.default_memory_mib if body.memory_mib is None else body.memory_mib,
            parse_gpu_request(body.gpus),
            parse_labels(body.on.items()),
        ),
        count=body.count,
        title=body.title,
        owner=body.owner,
    )
