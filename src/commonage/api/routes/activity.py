"""Routes of limits: what a session reports of its activity, extensions, and giving back the GPU."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from commonage import messages
from commonage.api.routes.workloads import WORKLOAD, check_id, workload_for
from commonage.api.routing import BODY, Guarded, asks, body_of, caller, context, problems, read_json
from commonage.domain.idle import Activity
from commonage.domain.permissions import Permission
from commonage.wire.activity import ActivityIn, ActivityOut, ExtendIn, NoticeOut
from commonage.wire.workloads import WorkloadOut

router = APIRouter(route_class=Guarded, tags=["workloads"])


@router.post(
    WORKLOAD + "/activity",
    summary="Report the activity of a session",
    responses=problems(*BODY, "workload-not-found", "not-running"),
    openapi_extra=body_of(ActivityIn, {"attempt": 1, "idle_s": 90.0, "busy": False}),
)
@asks(Permission.ENTER_WORKLOADS)
async def report_activity(request: Request, workload_id: str) -> ActivityOut:
    """Called by a session itself, with its own token. A session that never reports counts as active."""
    body = await read_json(request, ActivityIn)
    activity = Activity(0.0, 0.0, body.busy, tuple(body.programs), body.is_measured)
    notices, next_s = await context(request).control.extensions.report(
        caller(request), check_id(workload_id), body.attempt, body.idle_s, activity
    )
    shown = [
        NoticeOut(code=one.reason.code, message=messages.text(one.reason), offers=[offer.value for offer in one.offers])
        for one in notices
    ]
    return ActivityOut(notices=shown, next_s=next_s)


@router.post(
    WORKLOAD + "/extend",
    summary="Extend a workload",
    responses=problems(*BODY, "workload-not-found", "not-running", "extension-refused"),
    openapi_extra=body_of(ExtendIn, {"for_s": 7200}, required=False),
)
@asks(Permission.STOP_WORKLOADS)
async def extend(request: Request, workload_id: str) -> WorkloadOut:
    """Keep it for a time from now, two hours by default: neither its time limit nor idleness ends it before.

    Quota, maximum age and reservations may allow less; then the newest event says why.
    """
    api, principal = context(request), caller(request)
    body = await read_json(request, ExtendIn, optional=True)
    found = await api.control.extensions.extend(principal, check_id(workload_id), body.for_s)
    return workload_for(api, principal, found)


@router.post(
    WORKLOAD + "/release-gpu",
    summary="Release the GPU of a session",
    responses=problems("workload-not-found", "not-running", "no-gpu"),
)
@asks(Permission.STOP_WORKLOADS)
async def release_gpu(request: Request, workload_id: str) -> WorkloadOut:
    """Stop the session and start it again without its GPU, with the same files. Kernels and their variables are lost.

    The new session is another workload. An event of the old one, `RestartedAs`, has its id.
    """
    api, principal = context(request), caller(request)
    found = await api.control.extensions.release_gpu(principal, check_id(workload_id))
    return workload_for(api, principal, found)
