"""Route of environments: the catalogue."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import encode
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.domain.principals import Scope
from commonage.wire.platform import EnvironmentList

router = APIRouter(route_class=Guarded, tags=["environments"])


@router.get("/environments", summary="The catalogue", response_model=EnvironmentList, responses=problems())
async def list_environments(request: Request) -> Response:
    """What your workloads can run in, and whether it is made already."""
    who = caller(request)
    who.need(Scope.READ)
    found = context(request).control.node_pool.environments(who)
    return answer(EnvironmentList(items=[encode.environment(one) for one in found]))
