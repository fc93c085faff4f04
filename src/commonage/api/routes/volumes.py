"""Routes of volumes: data that workloads may mount, and the size of the caller's home."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage import messages
from commonage.api.fill import fill
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.control.queries.launch import VolumeView
from commonage.control.usage.homes import HomeView
from commonage.wire.environments import HomeOut, VolumeList, VolumeOut

router = APIRouter(route_class=Guarded, tags=["volumes"])


@router.get("/volumes", summary="List volumes", response_model=VolumeList, responses=problems())
async def list_volumes(request: Request) -> Response:
    """The volumes that your workloads may mount, and the disk space that your home uses.

    Admins see the volumes of all tenants.
    """
    control, principal = context(request).control, caller(request)
    volumes = [volume_out(view) for view in control.volumes.offered(principal)]
    return answer(VolumeList(items=volumes, home=_home_out(control.homes.of(principal))))


def _home_out(view: HomeView | None) -> HomeOut | None:
    if view is None:
        return None
    return fill(HomeOut, view, over=view.is_over, measured_at=view.at, text=messages.text(view.reason))


def volume_out(view: VolumeView) -> VolumeOut:
    """A volume that the caller may mount; `tenants` are those of the caller that may use it."""
    return fill(VolumeOut, view, view.volume, in_memory=view.volume.memory)
