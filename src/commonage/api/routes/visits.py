"""Routes of visits: open the session of another user, and tell the hub which visitors may stay."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from commonage.api.routes.workloads import WORKLOAD, check_id, session_address
from commonage.api.routing import BODY, Guarded, asks, body_of, caller, context, problems, read_json
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.wire.visits import OpenedOut, VisitorsIn, VisitorsOut

router = APIRouter(route_class=Guarded, tags=["workloads"])
_ROLES_COUNT = frozenset({Scope.READ, Scope.SUBMIT, Scope.MANAGE})


@router.post(
    WORKLOAD + "/open",
    summary="Open a session",
    responses=problems("workload-not-found", "not-running", "sessions-share-origin"),
)
@asks(Permission.ENTER_WORKLOADS)
async def open_session(request: Request, workload_id: str) -> OpenedOut:
    """Let the caller into a running session, until it ends or the caller loses the permission; returns its address.

    The owner of the session sees an event with the caller's name.
    """
    control = context(request).control
    opened = await control.visits.open(caller(request), check_id(workload_id))
    return OpenedOut(url=session_address(opened, control.settings.session_origin) or "")


@router.post(
    WORKLOAD + "/visitors",
    summary="Check visitors of a session",
    responses=problems(*BODY, "workload-not-found"),
    openapi_extra=body_of(VisitorsIn, {"visitors": [{"name": "grace", "groups": ["teachers"]}]}),
)
@asks(Permission.MANAGE_PLATFORM)
async def check_visitors(request: Request, workload_id: str) -> VisitorsOut:
    """The users, of those given, who may stay in a session that they opened. JupyterHub calls it every few seconds."""
    principal = caller(request)
    body = await read_json(request, VisitorsIn)
    visitors = [
        Principal(one.name, _ROLES_COUNT | ({Scope.ADMIN} if one.admin else set()), tuple(one.groups))
        for one in body.visitors
    ]
    found = await context(request).control.visits.may_stay(principal, check_id(workload_id), visitors)
    return VisitorsOut(names=[one.name for one in found])
