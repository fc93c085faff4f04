"""Routes of sites elsewhere: list, invite, revoke and remove them. All are for admins."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from commonage.api.fill import fill
from commonage.api.routing import BODY, Guarded, body_of, caller, context, expiry, problems, read_json
from commonage.domain.errors import Conflict, InvalidInput
from commonage.domain.principals import Scope
from commonage.ports.sites import Sites
from commonage.wire.nodes import DoneOut
from commonage.wire.sites import SiteList, SiteOut, SiteTokenIn, SiteTokenOut

router = APIRouter(route_class=Guarded, tags=["sites"])


@router.get("/sites", summary="List sites", responses=problems())
async def list_sites(request: Request) -> SiteList:
    """All sites that may connect, or could before, with the state of their links. For admins."""
    caller(request, Scope.ADMIN)
    sites = context(request).sites
    return SiteList(items=[] if sites is None else [fill(SiteOut, one) for one in await sites.sites()])


@router.post(
    "/sites/{name}/token",
    status_code=201,
    summary="Create a token for a site",
    responses=problems(*BODY, "conflict"),
    openapi_extra=body_of(SiteTokenIn, {"for_s": 3600}, required=False),
)
async def make(request: Request, name: str) -> SiteTokenOut:
    """Create a token with which one machine may join as this site, once. It replaces an earlier token. For admins.

    It expires no later than the token of the request. A machine that is this site already stays so until then.
    """
    caller(request, Scope.ADMIN)
    sites = _sites(request)
    body = await read_json(request, SiteTokenIn, optional=True)
    latest, now = await expiry(request), context(request).control.clock.now()
    if latest is not None and now + body.for_s > latest:
        raise InvalidInput(
            f"a token cannot last {body.for_s} seconds: the token of this request expires in {int(latest - now)} "
            "seconds; request a shorter lifetime, or use another token",
            field="for_s",
        )
    return fill(SiteTokenOut, await sites.token(name, body.for_s))


@router.post(
    "/sites/{name}/revoke",
    summary="Revoke a site",
    responses=problems("site-not-found", "conflict"),
)
async def revoke(request: Request, name: str) -> DoneOut:
    """Revoke its certificate and its token, and end its link. It can join again with a new token. For admins."""
    caller(request, Scope.ADMIN)
    await _sites(request).revoke(name)
    return DoneOut(done=[f"the site {name} is revoked: it can join again with a new token"])


@router.delete(
    "/sites/{name}",
    summary="Remove a site",
    responses=problems("site-not-found", "conflict"),
)
async def remove(request: Request, name: str) -> DoneOut:
    """Revoke the site, and forget it. For admins."""
    caller(request, Scope.ADMIN)
    await _sites(request).remove(name)
    return DoneOut(done=[f"the site {name} is removed"])


def _sites(request: Request) -> Sites:
    sites = context(request).sites
    if sites is None:
        raise Conflict("no site can join this control plane; an admin must set `site_address`")
    return sites
