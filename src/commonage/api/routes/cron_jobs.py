"""Routes of cron jobs: create, list, show, suspend, resume, trigger, remove. Their runs are workloads."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill, optional_reason
from commonage.api.routes.workloads import INVALID_SUBMISSION, parse_submission, request_out, workload_for
from commonage.api.routing import (
    Context,
    Guarded,
    answer,
    asks,
    body_of,
    caller,
    context,
    problems,
    read_json,
)
from commonage.control.workloads.cron_jobs import NewCronJob
from commonage.domain.cron_jobs import CronJob, CronRule, MissedRuns, Overlap
from commonage.domain.permissions import Permission
from commonage.wire.cron_jobs import CronJobIn, CronJobList, CronJobOut, CronRuleIn, TriggeredOut, TriggerIn

router = APIRouter(route_class=Guarded, tags=["cron jobs"])

_INVALID = (*INVALID_SUBMISSION, "invalid-schedule", "cron-job-exists", "too-many-cron-jobs")
_EXAMPLE = {
    "schedule": "0 7 * * 1-5",
    "time_zone": "Europe/Berlin",
    "job": {"name": "nightly", "command": ["python", "report.py"]},
}
CRON_JOB = "/cron-jobs/{cron_job_id:workload}"  # not `dry-run`, see the routes of workloads


@router.post(
    "/cron-jobs",
    status_code=201,
    summary="Create a cron job",
    responses={**problems(*_INVALID), 201: {"description": "Created, and durable."}},
    openapi_extra=body_of(CronJobIn, _EXAMPLE),
)
@asks(Permission.SUBMIT)
async def create(request: Request) -> CronJobOut:
    """Each run is an ordinary workload of its owner, with the same checks, quotas and queue."""
    api = context(request)
    made = await api.control.cron_jobs.create(caller(request), parse_cron_job(await read_json(request, CronJobIn)))
    return _cron_job_out(api, made)


@router.post(
    "/cron-jobs/dry-run",
    summary="Preview a cron job",
    responses=problems(*_INVALID),
    openapi_extra=body_of(CronJobIn, _EXAMPLE),
)
@asks(Permission.SUBMIT)
async def dry_run(request: Request) -> CronJobOut:
    """The same checks and errors as creating it, with its next five times. Creates nothing."""
    api = context(request)
    found = api.control.cron_jobs.considered(caller(request), parse_cron_job(await read_json(request, CronJobIn)))
    return _cron_job_out(api, found)


@router.get("/cron-jobs", summary="List cron jobs", responses=problems())
@asks(Permission.SEE_WORKLOADS)
async def list_cron_jobs(request: Request) -> CronJobList:
    """Your own, and those of other users whose workloads you may see."""
    api = context(request)
    return CronJobList(items=[_cron_job_out(api, one) for one in api.control.cron_jobs.visible(caller(request))])


@router.get(CRON_JOB, summary="Show a cron job", responses=problems("cron-job-not-found"))
@asks(Permission.SEE_WORKLOADS)
async def one_cron_job(request: Request, cron_job_id: str) -> CronJobOut:
    """Its rule, its next five times, and why its newest time did not run."""
    api = context(request)
    return _cron_job_out(api, api.control.cron_jobs.one(caller(request), cron_job_id))


@router.delete(CRON_JOB, summary="Remove a cron job", responses=problems("cron-job-not-found"))
@asks(Permission.STOP_WORKLOADS)
async def remove(request: Request, cron_job_id: str) -> CronJobOut:
    """Its runs are kept, and live ones continue."""
    api = context(request)
    return _cron_job_out(api, await api.control.cron_jobs.remove(caller(request), cron_job_id))


@router.post(CRON_JOB + "/suspend", summary="Suspend a cron job", responses=problems("cron-job-not-found"))
@asks(Permission.STOP_WORKLOADS)
async def suspend(request: Request, cron_job_id: str) -> CronJobOut:
    """It does not fire until it is resumed. Runs that have not ended continue."""
    api = context(request)
    return _cron_job_out(api, await api.control.cron_jobs.suspend(caller(request), cron_job_id))


@router.post(CRON_JOB + "/resume", summary="Resume a cron job", responses=problems("cron-job-not-found"))
@asks(Permission.STOP_WORKLOADS)
async def resume(request: Request, cron_job_id: str) -> CronJobOut:
    """It fires again from now on. Times that passed while it was suspended do not run."""
    api = context(request)
    return _cron_job_out(api, await api.control.cron_jobs.resume(caller(request), cron_job_id))


@router.post(
    CRON_JOB + "/trigger",
    status_code=201,
    summary="Run a cron job now",
    responses={
        **problems(*INVALID_SUBMISSION, "cron-job-not-found", "key-taken", "key-reused"),
        200: {"model": TriggeredOut, "description": "An earlier request with this key created it."},
        201: {"description": "Created, and durable."},
    },
    response_model=TriggeredOut,
    openapi_extra=body_of(TriggerIn, {"key": "first-try"}, required=False),
)
@asks(Permission.ENTER_WORKLOADS)
async def trigger(request: Request, cron_job_id: str) -> Response:
    """One run outside the schedule, also if it is suspended."""
    api, principal = context(request), caller(request)
    body = await read_json(request, TriggerIn, optional=True)
    made = await api.control.cron_jobs.trigger(principal, cron_job_id, body.key)
    shown = workload_for(api, principal, made.workloads[0])
    found = TriggeredOut(workload=shown, created=made.created, ids=[one.id for one in made.workloads])
    return answer(found, 201 if made.created else 200)


def _cron_job_out(api: Context, found: CronJob) -> CronJobOut:
    control = api.control
    waiting = control.cron_jobs.waiting(found.id)
    return fill(
        CronJobOut,
        found,
        found.spec,
        found.rule,
        name=found.name,
        request=request_out(found.spec.request),
        next_times=found.next_times(control.clock.now()),
        reason=optional_reason(waiting or found.last_refused),
        active=[one.id for one in control.cron_jobs.active(found.id)],
    )


def parse_rule(body: CronRuleIn) -> CronRule:
    return CronRule(
        body.schedule, body.time_zone, Overlap(body.overlap), MissedRuns(body.missed_runs), body.starting_deadline_s
    )


def parse_cron_job(body: CronJobIn) -> NewCronJob:
    """The cron job in the domain's quantities. Raises InvalidInput with the code of the field."""
    return NewCronJob(
        parse_submission(body.job), parse_rule(body), body.suspended, body.succeeded_kept, body.failed_kept
    )
