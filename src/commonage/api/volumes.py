"""Route of volumes: what data there is to have."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.routing import Guarded, answer, caller, door, problems
from commonage.control.volumes import VolumeView
from commonage.wire.volumes import VolumeList, VolumeOut

router = APIRouter(route_class=Guarded, tags=["volumes"])


@router.get("/volumes", summary="Data that workloads may have", response_model=VolumeList, responses=problems())
async def list_volumes(request: Request) -> Response:
    """The volumes of your tenants, for admins all: whether they may be written to, and where a workload finds them."""
    found = door(request).control.volumes.offered(caller(request))
    return answer(VolumeList(items=[volume(one) for one in found]))


def volume(view: VolumeView) -> VolumeOut:
    """A volume that somebody may have."""
    found = view.volume
    return VolumeOut(
        name=found.name,
        title=found.title,
        description=found.description,
        kind=found.kind.value,
        writable=found.writable,
        always=found.always,
        size_mib=found.size_mib,
        in_memory=found.memory,
        tenants=list(view.tenants),
        place=view.place,
        notes=list(view.notes),
    )
