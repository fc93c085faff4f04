"""Route of volumes: what data there is to have."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage import messages
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.control.queries.volumes import VolumeView
from commonage.control.usage.homes import HomeView
from commonage.wire.volumes import HomeOut, VolumeList, VolumeOut

router = APIRouter(route_class=Guarded, tags=["volumes"])


@router.get("/volumes", summary="Data that workloads may have", response_model=VolumeList, responses=problems())
async def list_volumes(request: Request) -> Response:
    """The volumes of your tenants, for admins all: whether they may be written to, and where a workload finds them.

    And how much room your home takes.
    """
    control, who = context(request).control, caller(request)
    found = control.volumes.offered(who)
    return answer(VolumeList(items=[volume(one) for one in found], home=_home(control.homes.of(who))))


def _home(view: HomeView | None) -> HomeOut | None:
    if view is None:
        return None
    return HomeOut(
        used_mib=view.used_mib,
        quota_mib=view.quota_mib,
        over=view.is_over,
        measured_at=view.at,
        text=messages.text(view.reason),
    )


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
        bounded_on=list(view.bounded_on),
        unbounded_on=list(view.unbounded_on),
        notes=list(view.notes),
    )
