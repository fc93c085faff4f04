"""Routes of tenants: quotas, allocated resources and queued workloads."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.control.tenants import TenantView
from commonage.wire.tenants import TenantList, TenantOut

router = APIRouter(route_class=Guarded, tags=["tenants"])


@router.get("/tenants", summary="List tenants", response_model=TenantList, responses=problems())
async def list_tenants(request: Request) -> Response:
    """Your tenants, with their quotas, allocated, borrowed and lent resources, and the length of their queues.

    Admins see all tenants.
    """
    found = context(request).control.tenants.all(caller(request))
    return answer(TenantList(items=[tenant_out(view) for view in found]))


@router.get(
    "/tenants/{name:path}", summary="Show a tenant", response_model=TenantOut, responses=problems("tenant-not-found")
)
async def one_tenant(request: Request, name: str) -> Response:
    """One tenant, with its quotas and its allocated, borrowed and lent resources."""
    return answer(tenant_out(context(request).control.tenants.one(caller(request), name)))


def tenant_out(view: TenantView) -> TenantOut:
    """The tenant with its quotas."""
    return fill(TenantOut, view, view.tenant, view.tenant.quota)
