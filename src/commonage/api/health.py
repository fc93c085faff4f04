"""Route of health: whether the control plane does its work. The only one that needs no token."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage import __version__
from commonage.api.routing import answer, door
from commonage.wire.platform import HealthOut

router = APIRouter(tags=["installation"])

BEHIND_AFTER_S = 60.0


@router.get(
    "/health",
    summary="Whether it works",
    response_model=HealthOut,
    responses={503: {"model": HealthOut, "description": "A loop has not come round for a minute."}},
    openapi_extra={"security": []},
)
async def health(request: Request) -> Response:
    """For supervisors and load balancers: 200 while all loops come round, 503 when one does not."""
    loops = {name: round(age, 1) for name, age in door(request).control.health().items()}
    behind = any(age > BEHIND_AFTER_S for age in loops.values())
    found = HealthOut(status="behind" if behind else "ok", version=__version__, loops=loops)
    return answer(found, 503 if behind else 200)
