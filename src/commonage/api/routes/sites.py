"""Routes of sites elsewhere: list, invite, revoke and remove them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from commonage.api.fill import fill
from commonage.api.routing import BODY, Guarded, asks, body_of, caller, context, need_lifetime, problems, read_json
from commonage.domain.permissions import Permission
from commonage.wire.nodes import DoneOut
from commonage.wire.sites import SiteList, SiteOut, SiteTokenIn, SiteTokenOut

router = APIRouter(route_class=Guarded, tags=["sites"])


@router.get("/sites", summary="List sites", responses=problems())
@asks(Permission.SEE_PLATFORM)
async def list_sites(request: Request) -> SiteList:
    """All sites that may connect, or could before, with the state of their links. For those who see the platform."""
    return SiteList(items=[fill(SiteOut, one) for one in await context(request).control.sites.all(caller(request))])


@router.post(
    "/sites/{name}/token",
    status_code=201,
    summary="Create a token for a site",
    responses=problems(*BODY, "conflict"),
    openapi_extra=body_of(SiteTokenIn, {"for_s": 3600}, required=False),
)
@asks(Permission.MANAGE_PLATFORM)
async def make(request: Request, name: str) -> SiteTokenOut:
    """Create a token with which one machine may join as this site, once. It replaces an earlier token. For admins.

    It expires no later than the token of the request. A machine that is this site already stays so until then.
    """
    body = await read_json(request, SiteTokenIn, optional=True)
    await need_lifetime(request, body.for_s)
    return fill(SiteTokenOut, await context(request).control.sites.token(caller(request), name, body.for_s))


@router.post(
    "/sites/{name}/revoke",
    summary="Revoke a site",
    responses=problems("site-not-found", "conflict"),
)
@asks(Permission.MANAGE_PLATFORM)
async def revoke(request: Request, name: str) -> DoneOut:
    """Revoke its certificate and its token, and end its link. It can join again with a new token. For admins."""
    await context(request).control.sites.revoke(caller(request), name)
    return DoneOut(done=[f"the site {name} is revoked: it can join again with a new token"])


@router.delete(
    "/sites/{name}",
    summary="Remove a site",
    responses=problems("site-not-found", "conflict"),
)
@asks(Permission.MANAGE_PLATFORM)
async def remove(request: Request, name: str) -> DoneOut:
    """Revoke the site, and forget it. For admins."""
    await context(request).control.sites.remove(caller(request), name)
    return DoneOut(done=[f"the site {name} is removed"])
