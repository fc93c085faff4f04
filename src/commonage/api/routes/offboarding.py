"""Routes of users, and of the renaming and removal of users and tenants."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from commonage.api.fill import fill, reason
from commonage.api.routing import BODY, Guarded, asks, body_of, caller, context, problems, read_json
from commonage.domain.offboarding import Change, DataChoice, Subject, Wanted, WorkChoice
from commonage.domain.permissions import Permission
from commonage.wire.offboarding import (
    OffboardingIn,
    OffboardingList,
    OffboardingOut,
    OffboardingPlanIn,
    OffboardingPlanOut,
    UserList,
    UserOut,
)

router = APIRouter(route_class=Guarded)
_RENAME = {"subject": "user", "change": "rename", "name": "ann", "to": "anna", "workloads": "finish"}
_REMOVE = {"subject": "user", "change": "remove", "name": "ann", "version": "5f2a9d3c1b7e8a40"}
_PLANNED = (*BODY, "user-not-found", "tenant-not-found", "offboarding-pending", "name-not-released")


@router.get("/users", tags=["users"], summary="List users", responses=problems())
@asks(Permission.SEE_PLATFORM)
async def list_users(request: Request) -> UserList:
    """Users of JupyterHub, and others who own work or whose names are retired. For operators and admins."""
    found = await context(request).control.offboardings.users(caller(request))
    return UserList(items=[fill(UserOut, one) for one in found])


@router.get("/users/{name:path}", tags=["users"], summary="Show a user", responses=problems("user-not-found"))
@asks(Permission.SEE_PLATFORM)
async def one_user(request: Request, name: str) -> UserOut:
    """One user, with groups, roles and the size of the home. For operators and admins."""
    return fill(UserOut, await context(request).control.offboardings.user(caller(request), name))


@router.post(
    "/offboarding-plans",
    tags=["users"],
    summary="Plan a renaming or removal",
    responses=problems(*_PLANNED),
    openapi_extra=body_of(OffboardingPlanIn, _RENAME),
)
@asks(Permission.SEE_PLATFORM)
async def plan(request: Request) -> OffboardingPlanOut:
    """Preview the renaming or removal of a user or a tenant. Changes nothing. For operators and admins."""
    principal = caller(request)
    body = await read_json(request, OffboardingPlanIn)
    found = await context(request).control.offboardings.plan(principal, wanted_of(body))
    lists = {name: [reason(one) for one in getattr(found, name)] for name in ("items", "obstacles")}
    return fill(OffboardingPlanOut, found, **lists)


@router.post(
    "/offboardings",
    tags=["users"],
    status_code=202,
    summary="Rename or remove a user or a tenant",
    responses=problems(*_PLANNED, "plan-obstructed", "version-mismatch"),
    openapi_extra=body_of(OffboardingIn, _REMOVE),
)
@asks(Permission.MANAGE_PLATFORM)
async def begin(request: Request) -> OffboardingOut:
    """Begin what a plan says. The steps follow by themselves. The same request again returns the first. For admins."""
    principal = caller(request)
    body = await read_json(request, OffboardingIn)
    begun = await context(request).control.offboardings.begin(principal, wanted_of(body), body.version)
    return fill(OffboardingOut, begun)


@router.get("/offboardings", tags=["users"], summary="List renamings and removals", responses=problems())
@asks(Permission.SEE_PLATFORM)
async def list_offboardings(request: Request) -> OffboardingList:
    """Renamings and removals of users and tenants, newest first. For operators and admins."""
    found = context(request).control.offboardings.all(caller(request))
    return OffboardingList(items=[fill(OffboardingOut, one) for one in found])


@router.get(
    "/offboardings/{offboarding_id}",
    tags=["users"],
    summary="Show a renaming or removal",
    responses=problems("offboarding-not-found"),
)
@asks(Permission.SEE_PLATFORM)
async def one_offboarding(request: Request, offboarding_id: str) -> OffboardingOut:
    """Its finished steps, the next one, and its last error. For operators and admins."""
    return fill(OffboardingOut, context(request).control.offboardings.one(caller(request), offboarding_id))


@router.post(
    "/offboardings/{offboarding_id}/release",
    tags=["users"],
    summary="Release a retired name",
    responses=problems("offboarding-not-found", "offboarding-pending"),
)
@asks(Permission.MANAGE_PLATFORM)
async def release(request: Request, offboarding_id: str) -> OffboardingOut:
    """Permit others to take the name that was given up. Data that was kept under the name becomes theirs. For
    admins.
    """
    released = await context(request).control.offboardings.release(caller(request), offboarding_id)
    return fill(OffboardingOut, released)


def wanted_of(body: OffboardingPlanIn) -> Wanted:
    return Wanted(
        Subject(body.subject),
        Change(body.change),
        body.name,
        to=body.to,
        heir=body.heir,
        workloads=WorkChoice(body.workloads),
        data=DataChoice(body.data),
        keep_account=body.keep_account,
    )
