"""Routes of the installation: its health, its properties, and the caller's identity."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage import __version__
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.domain.workloads import State
from commonage.wire.installation import HealthOut, InfoOut

router = APIRouter(route_class=Guarded, tags=["installation"])
_public = APIRouter(tags=["installation"])


@router.get("/info", summary="Show the installation and your identity", response_model=InfoOut, responses=problems())
async def info(request: Request) -> Response:
    """Properties of the installation, and your user name and scopes. Any valid token is enough."""
    control, principal = context(request).control, caller(request)
    capabilities = control.node_views.capabilities()
    return answer(
        InfoOut(
            name=control.settings.name,
            version=__version__,
            user=principal.name,
            admin=principal.is_admin,
            scopes=sorted(scope.value for scope in principal.scopes),
            simulated_gpus=control.live_state.simulated_gpus,
            engines=[one.name for one in capabilities],
            counts=by_state(control.queries.live_counts()),
            queue_length=control.queries.queue_length(),
            notes=[note for one in capabilities for note in one.notes],
        )
    )


@_public.get(
    "/health",
    summary="Check the health of the control plane",
    response_model=HealthOut,
    responses={503: {"model": HealthOut, "description": "A control loop is stuck."}},
    openapi_extra={"security": []},
)
async def health(request: Request) -> Response:
    """For supervisors and load balancers: 200 while all control loops work, 503 if one is stuck."""
    loops = context(request).control.health()
    stuck = [one.name for one in loops if one.stuck]
    ages = {one.name: None if one.age_s is None else round(one.age_s, 1) for one in loops}
    found = HealthOut(status="stuck" if stuck else "ok", version=__version__, since_iteration_s=ages, stuck=stuck)
    return answer(found, 503 if stuck else 200)


router.routes.extend(_public.routes)


def by_state(counts: Mapping[State, int]) -> dict[str, int]:
    """The number of workloads in each state."""
    return {state.value: number for state, number in counts.items()}
