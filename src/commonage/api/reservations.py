"""Routes of reservations: what is kept for whom and when; admins make them and take them away."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import decode, encode_reasons
from commonage.api import encode_tenants as encode
from commonage.api.routing import Guarded, answer, body_of, caller, context, problems, read_json
from commonage.domain.principals import Scope
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


@router.get(
    "/reservations", summary="What is kept for whom, and when", response_model=ReservationList, responses=problems()
)
async def list_reservations(request: Request) -> Response:
    """Those of your tenants that are not over, for admins all."""
    reservations = context(request).control.reservations
    found = reservations.visible(caller(request))
    return answer(ReservationList(items=[encode.reservation(one, reservations.shortfalls(one)) for one in found]))


@router.post(
    "/reservations",
    status_code=201,
    summary="Keep room for a tenant in a window of time",
    response_model=ReservedOut,
    responses={
        **problems(
            "invalid-input", "invalid-json", "invalid-encoding", "unsupported-media-type", "too-large", "unknown-field",
            "invalid-memory", "invalid-cpus", "invalid-gpus", "invalid-label", "unknown-tenant", "unschedulable",
            "conflict", "reservation-conflict",
        ),
        201: {"description": "Made, and durable."},
    },
    openapi_extra=body_of(ReservationIn, _EXAMPLE),
)  # fmt: skip
async def reserve(request: Request) -> Response:
    """For admins. Refused where the cluster could never keep it beside the reservations made before; `reason` says what
    runs now and may be in the way.
    """
    control, who = context(request).control, caller(request)
    who.need(Scope.ADMIN)
    ask = await read_json(request, ReservationIn)
    made = await control.reservations.add(who, decode.reservation(ask, control.clock.now(), control.settings))
    items = [encode.reservation(one) for one in made.reservations]
    return answer(ReservedOut(items=items, reason=encode_reasons.optional(made.shortfalls)), 201)


@router.delete(
    "/reservations/{reservation_id}",
    summary="Take a reservation away",
    response_model=ReservationOut,
    responses=problems("reservation-not-found"),
)
async def remove(request: Request, reservation_id: str) -> Response:
    """Whoever started within it goes on. For admins."""
    found = await context(request).control.reservations.remove(caller(request), reservation_id)
    return answer(encode.reservation(found))
