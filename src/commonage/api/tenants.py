"""Routes of tenants: what each has, holds and waits for."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import encode_tenants as encode
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.wire.tenants import TenantList, TenantOut

router = APIRouter(route_class=Guarded, tags=["tenants"])


@router.get(
    "/tenants", summary="Who shares the nodes, and what each holds", response_model=TenantList, responses=problems()
)
async def list_tenants(request: Request) -> Response:
    """Your own, for admins all: quotas, what is held, borrowed and lent, what waits."""
    found = context(request).control.tenants.all(caller(request))
    return answer(TenantList(items=[encode.tenant(one) for one in found]))


@router.get(
    "/tenants/{name:path}", summary="One tenant", response_model=TenantOut, responses=problems("tenant-not-found")
)
async def one_tenant(request: Request, name: str) -> Response:
    """The same of one."""
    return answer(encode.tenant(context(request).control.tenants.one(caller(request), name)))
