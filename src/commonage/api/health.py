"""Route of health: whether the control plane does its work. The only one that needs no token."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage import __version__
from commonage.api.routing import answer, context
from commonage.wire.platform import HealthOut

router = APIRouter(tags=["installation"])


@router.get(
    "/health",
    summary="Whether it works",
    response_model=HealthOut,
    responses={503: {"model": HealthOut, "description": "A loop is stuck."}},
    openapi_extra={"security": []},
)
async def health(request: Request) -> Response:
    """For supervisors and load balancers: 200 while all loops come round, 503 when one is stuck."""
    loops = context(request).control.health()
    stuck = [one.name for one in loops if one.stuck]
    ages = {one.name: None if one.age_s is None else round(one.age_s, 1) for one in loops}
    found = HealthOut(status="stuck" if stuck else "ok", version=__version__, since_iteration_s=ages, stuck=stuck)
    return answer(found, 503 if stuck else 200)
