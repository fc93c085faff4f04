"""Routes of reservations: admins create and cancel them, members see them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill, optional_reason
from commonage.api.routes.workloads import parse_gpu_request, request_out
from commonage.api.routing import BODY, Guarded, answer, body_of, caller, context, problems, read_json
from commonage.control.reservations import Wanted
from commonage.control.settings import ControlSettings
from commonage.control.windows import window_of, windows, zone_of
from commonage.domain.principals import Scope
from commonage.domain.reasons import Reason
from commonage.domain.requests import Request as ResourceRequest
from commonage.domain.requests import parse_cpus, parse_labels
from commonage.domain.tenants import Reservation
from commonage.wire.tenants import ReservationIn, ReservationList, ReservationOut, ReservedOut

router = APIRouter(route_class=Guarded, tags=["reservations"])

_EXAMPLE = {
    "tenant": "course",
    "starts_at": "2026-11-24 14:00",
    "ends_at": "16:00",
    "time_zone": "Europe/Berlin",
    "count": 50,
    "gpus": "4GiB",
    "title": "class",
}


@router.get("/reservations", summary="List reservations", response_model=ReservationList, responses=problems())
async def list_reservations(request: Request) -> Response:
    """Current and future reservations of your tenants; admins see those of all tenants."""
    reservations = context(request).control.reservations
    found = reservations.visible(caller(request))
    return answer(ReservationList(items=[_reservation_out(one, reservations.shortfalls(one)) for one in found]))


@router.post(
    "/reservations",
    status_code=201,
    summary="Reserve resources for a tenant",
    response_model=ReservedOut,
    responses={
        **problems(
            *BODY, "invalid-memory", "invalid-cpus", "invalid-gpus", "invalid-label", "unknown-tenant", "unschedulable",
            "conflict", "reservation-conflict",
        ),
        201: {"description": "Created, and durable."},
    },
    openapi_extra=body_of(ReservationIn, _EXAMPLE),
)  # fmt: skip
async def reserve(request: Request) -> Response:
    """Reserve resources in a window of time, once or repeatedly. For admins.

    Refused if the cluster cannot provide them in addition to the existing reservations. `reason` names running
    workloads that may be in the way.
    """
    control, principal = context(request).control, caller(request)
    principal.need(Scope.ADMIN)
    body = await read_json(request, ReservationIn)
    made = await control.reservations.add(principal, parse_reservation(body, control.clock.now(), control.settings))
    items = [_reservation_out(one) for one in made.reservations]
    return answer(ReservedOut(items=items, reason=optional_reason(made.shortfalls)), 201)


@router.delete(
    "/reservations/{reservation_id}",
    summary="Cancel a reservation",
    response_model=ReservationOut,
    responses=problems("reservation-not-found"),
)
async def remove(request: Request, reservation_id: str) -> Response:
    """Workloads that started within it continue. For admins."""
    found = await context(request).control.reservations.remove(caller(request), reservation_id)
    return answer(_reservation_out(found))


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
