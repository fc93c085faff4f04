"""Route of info: what this installation is, and who you are to it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage import __version__
from commonage.api import encode
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.wire.platform import InfoOut

router = APIRouter(route_class=Guarded, tags=["installation"])


@router.get("/info", summary="This installation, and who you are to it", response_model=InfoOut, responses=problems())
async def info(request: Request) -> Response:
    """Needs any token that the hub knows, whatever its scopes."""
    control, who = context(request).control, caller(request)
    capabilities = control.node_pool.capabilities()
    return answer(
        InfoOut(
            name=control.settings.name,
            version=__version__,
            user=who.name,
            admin=who.is_admin,
            scopes=sorted(scope.value for scope in who.scopes),
            simulated_gpus=control.node_pool.simulated_gpus,
            engines=[one.name for one in capabilities],
            counts=encode.counts(control.look.live_counts()),
            queue_length=control.look.queue_length(),
            notes=[note for one in capabilities for note in one.notes],
        )
    )
