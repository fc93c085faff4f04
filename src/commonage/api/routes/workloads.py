"""Routes of workloads: submit, dry run, list, show, explain, stop. Logs, events, metrics and usage have own modules."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill, reason
from commonage.api.routes.installation import by_state
from commonage.api.routing import (
    BODY,
    QUERY,
    Context,
    Guarded,
    access_for,
    answer,
    asks,
    body_of,
    caller,
    context,
    problems,
    read_json,
)
from commonage.control.access import Access
from commonage.control.queries.workloads import StateDetails
from commonage.control.workloads.submission import DEFAULT_GRACE_S, Submission
from commonage.domain.errors import InvalidInput, NotFound
from commonage.domain.explanations import Explanation, Holder, JobsAhead, SiteChoice
from commonage.domain.nodes import Share
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.requests import GpuRequest, parse_cpus, parse_gpus, parse_labels
from commonage.domain.requests import Request as ResourceRequest
from commonage.domain.usage import UsageReport, usage_report_in_words
from commonage.domain.volumes import parse_volume
from commonage.domain.workloads import Attempt, Condition, Dependency, Kind, RetryPolicy, State, Workload
from commonage.messages import explanations
from commonage.messages.waiting import resources
from commonage.ports.store import Filter
from commonage.wire.origins import service_url, session_url
from commonage.wire.usage import SuggestionOut, UsageReportOut
from commonage.wire.workloads import (
    AttemptList,
    AttemptOut,
    DependencyIn,
    ExplanationOut,
    HolderOut,
    JobsAheadOut,
    RequestOut,
    ShareOut,
    SiteChoiceOut,
    StopIn,
    SubmitIn,
    SubmitOut,
    WorkloadOut,
    WorkloadPage,
    WorkloadsQuery,
)

router = APIRouter(route_class=Guarded, tags=["workloads"])

INVALID_SUBMISSION = (
    *BODY,
    "invalid-memory",
    "invalid-cpus",
    "invalid-gpus",
    "invalid-time",
    "invalid-name",
    "invalid-command",
    "invalid-array",
    "invalid-bundle",
    "unknown-environment",
    "needs-gpu",
    "unknown-dependency",
    "unknown-tenant",
    "unknown-priority",
    "invalid-volume",
    "unknown-volume",
    "volume-read-only",
    "volume-at-no-site",
    "unknown-site",
    "invalid-label",
    "forbidden",
    "unschedulable",
    "not-admin",
    "not-a-member",
    "bundle-not-found",
    "too-many-bundles",
    "dependency-broken",
    "too-many-workloads",
    "storage-quota-exceeded",
)
_EXAMPLE = {"command": ["python", "train.py"], "gpus": "6GiB", "time_limit_s": 1800, "key": "first-try"}
_PAGE_OF_IDS = 500
_ID = re.compile(r"[0-9a-hjkmnp-tv-z]{13}")
MAX_VRAM_MIB = 1024**3  # a pebibyte: more than any node has, and within the range of every database
_MAX_PRIORITY = 100


class _WorkloadConvertor(Convertor[str]):
    """A part of a path that may be the id of a workload: everything except the route `dry-run`."""

    regex = r"(?!dry-run$)[^/]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("workload", _WorkloadConvertor())

WORKLOAD = "/workloads/{workload_id:workload}"


def check_id(workload_id: str) -> str:
    """The id itself. Raises NotFound for a text that is no id, so that no store receives it."""
    if _ID.fullmatch(workload_id) is None:
        shown = workload_id if len(workload_id) <= 60 else workload_id[:57] + "..."
        raise NotFound(f"there is no workload {shown!r}", code="workload-not-found")
    return workload_id


@router.post(
    "/workloads",
    status_code=201,
    summary="Submit a workload or an array",
    response_model=SubmitOut,
    responses={
        **problems(*INVALID_SUBMISSION, "key-taken", "key-reused", "user-not-found"),
        200: {"model": SubmitOut, "description": "An earlier request with this key created it."},
        201: {"description": "Created, and durable."},
    },
    openapi_extra=body_of(SubmitIn, _EXAMPLE),
)
@asks(Permission.SUBMIT)
async def submit(request: Request) -> Response:
    """The workload is durable when the request returns. A repeated request with the same `key` returns it (status 200).

    A user's session is started through the hub; the response is the workload created for it.
    """
    api, principal = context(request), caller(request)
    submission = parse_submission(await read_json(request, SubmitIn))
    made = await api.control.workloads.submit(principal, submission)
    first = made.workloads[0]
    ids = [one.id for one in made.workloads]
    if not made.created and first.spec.array_size:
        ids = await _ids_of_array(api, principal, first)
    shown = workload_for(api, principal, first)
    return answer(
        SubmitOut(workload=shown, created=made.created, count=len(ids), ids=ids), 201 if made.created else 200
    )


async def _ids_of_array(api: Context, principal: Principal, first: Workload) -> list[str]:
    members, cursor, found = Filter(array_id=first.id), None, list[Workload]()
    while True:
        page = await api.control.queries.workloads(principal, members, limit=_PAGE_OF_IDS, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return [one.id for one in sorted(found, key=lambda one: one.array_index or 0)]


@router.post(
    "/workloads/dry-run",
    summary="Explain a submission without creating it",
    responses=problems(*INVALID_SUBMISSION),
    openapi_extra=body_of(SubmitIn, _EXAMPLE),
)
@asks(Permission.SUBMIT)
async def dry_run(request: Request) -> ExplanationOut:
    """The same checks and errors as a submission, and an explanation of when it would start. Creates nothing.

    `suggestion` is based on your last runs of the same command in the same environment.
    """
    api, principal = context(request), caller(request)
    submission = parse_submission(await read_json(request, SubmitIn))
    found = explanation_out(await api.control.workloads.dry_run(principal, submission), None, access_for(request))
    suggestion = await api.control.advice.on(principal, submission)
    if suggestion is not None:
        found = found.model_copy(update={"suggestion": fill(SuggestionOut, suggestion)})
    return found


@router.get("/workloads", summary="List workloads, newest first", responses=problems(*QUERY, "invalid-cursor"))
@asks(Permission.SEE_WORKLOADS)
async def list_workloads(request: Request, query: Annotated[WorkloadsQuery, Query()]) -> WorkloadPage:
    """Your own workloads; admins see everyone's. Use `cursor` for the next page."""
    api, principal = context(request), caller(request)
    wanted = parse_filter(query)
    page = await api.control.queries.workloads(principal, wanted, limit=query.limit, cursor=query.cursor)
    counts = by_state(await api.control.queries.counts(principal, wanted)) if query.counts else {}
    items = [workload_for(api, principal, one) for one in page.items]
    return WorkloadPage(items=items, next_cursor=page.next_cursor, counts=counts)


@router.get(WORKLOAD, summary="Show a workload", responses=problems("workload-not-found"))
@asks(Permission.SEE_WORKLOADS)
async def one_workload(request: Request, workload_id: str) -> WorkloadOut:
    """Its state with the reason, its allocation, and its usage report."""
    api, principal = context(request), caller(request)
    workload = await api.control.queries.workload(principal, check_id(workload_id))
    found, report = workload_for(api, principal, workload), await api.control.usage_reports.of(workload)
    if report is not None:
        found = found.model_copy(update={"usage_report": usage_report_out(report)})
    return found


@router.get(WORKLOAD + "/explanation", summary="Explain why a workload waits", responses=problems("workload-not-found"))
@asks(Permission.SEE_WORKLOADS)
async def explanation(request: Request, workload_id: str) -> ExplanationOut:
    """Missing resources, their holders, a smaller request that would start now, and the expected start."""
    queries, principal = context(request).control.queries, caller(request)
    found = await queries.explain(principal, check_id(workload_id))
    workload = await queries.workload(principal, workload_id)
    return explanation_out(found, workload.state, access_for(request))


@router.get(WORKLOAD + "/attempts", summary="List the attempts of a workload", responses=problems("workload-not-found"))
@asks(Permission.SEE_WORKLOADS)
async def attempts(request: Request, workload_id: str) -> AttemptList:
    """Oldest first, each with its node, its GPU shares and its end."""
    found = await context(request).control.queries.attempts(caller(request), check_id(workload_id))
    return AttemptList(items=[attempt_out(one) for one in found])


@router.post(
    WORKLOAD + "/reset-packages",
    summary="Delete the packages that the user added in a session",
    responses=problems("workload-not-found", "not-running", "conflict", "engine-failure"),
)
@asks(Permission.ENTER_WORKLOADS)
async def reset_packages(request: Request, workload_id: str) -> WorkloadOut:
    """Delete the packages that the user of a running session installed. Its kernels start without them from then on.

    The session itself continues: its server does not use these packages.
    """
    api, principal = context(request), caller(request)
    await api.control.execs.reset_packages(principal, check_id(workload_id))
    return workload_for(api, principal, await api.control.queries.workload(principal, workload_id))


@router.post(
    WORKLOAD + "/stop",
    summary="Stop a workload",
    responses=problems(*BODY, "workload-not-found", "already-ended"),
    openapi_extra=body_of(StopIn, {"reason": "wrong data"}, required=False),
)
@asks(Permission.STOP_WORKLOADS)
async def stop(request: Request, workload_id: str) -> WorkloadOut:
    """Send SIGTERM, then SIGKILL after the grace period. Repeated requests have no further effect."""
    api, principal = context(request), caller(request)
    body = await read_json(request, StopIn, optional=True)
    found = await api.control.workloads.stop(principal, check_id(workload_id), body.reason)
    return workload_for(api, principal, found)


# --- responses ------------------------------------------------------------------------------------------------------


def workload_for(api: Context, principal: Principal, workload: Workload) -> WorkloadOut:
    control = api.control
    details, origin = control.queries.details(workload), control.settings.session_origin
    return workload_out(workload, details, origin, internal=api.auth.is_spawner(principal))


def workload_out(
    workload: Workload, details: StateDetails, session_origin: str = "", *, internal: bool = False
) -> WorkloadOut:
    """The workload; browsers reach sessions at `session_origin`. `internal` adds the URL on the site's network."""
    spec, attempt = workload.spec, workload.attempt
    # While it waits for a retry, the placement of the previous attempt no longer applies.
    placed = attempt if attempt is not None and not workload.state.waits else None
    ended = workload.state.is_terminal
    return fill(
        WorkloadOut,
        workload,
        spec,
        reason=reason(details.reason),
        notes=[reason(note) for note in details.notes],
        position=details.position,
        health=details.health,
        progress=details.progress,
        activity=details.activity,
        active_at=details.active_at,
        request=request_out(spec.request),
        started_at=placed.started_at if placed else None,
        ended_at=((attempt and attempt.ended_at) or workload.since) if ended else None,
        exit_code=attempt.exit_code if attempt else None,
        site=placed.allocation.site if placed else None,
        node=placed.allocation.node if placed else None,
        shares=[_share_out(share) for share in placed.allocation.shares] if placed else [],
        retries=spec.retry.retries,
        depends_on=[DependencyIn(id=one.workload_id, condition=one.condition.value) for one in spec.depends_on],
        volumes=[volume.text for volume in spec.volumes],
        variables=dict(spec.variables),
        stopping=workload.stop is not None and not ended,
        url=session_address(workload, session_origin),
        internal_url=attempt.url if attempt and (internal or spec.kind is Kind.SERVICE) else None,
    )


def session_address(workload: Workload, session_origin: str) -> str | None:
    """Where browsers reach a running session or service."""
    if workload.spec.kind is Kind.JOB or workload.state is not State.RUNNING:
        return None
    if workload.spec.kind is Kind.SERVICE:
        return service_url(session_origin, workload.id)
    return session_url(session_origin, workload.spec.owner, workload.spec.name)


def request_out(request: ResourceRequest) -> RequestOut:
    return fill(
        RequestOut,
        request,
        gpus=request.gpu.text if request.gpu else None,
        text=str(request),
        on=dict(request.labels),
    )


def _share_out(share: Share) -> ShareOut:
    return fill(ShareOut, share, device=share.device_uuid, index=share.device_index)


def attempt_out(attempt: Attempt) -> AttemptOut:
    allocation = attempt.allocation
    return fill(
        AttemptOut,
        attempt,
        site=allocation.site,
        node=allocation.node,
        shares=[_share_out(share) for share in allocation.shares],
        allocated_at=allocation.at,
    )


def explanation_out(found: Explanation, state: State | None, access: Access) -> ExplanationOut:
    """The explanation, without the names of workloads that the reader may not see."""
    return fill(
        ExplanationOut,
        found,
        state=state,
        summary=explanations.summary(found),
        jobs_ahead=[_jobs_ahead_out(one) for one in found.jobs_ahead],
        reasons=[reason(one) for one in found.reasons],
        quotas=[reason(one) for one in found.quotas],
        sites=[_site_choice_out(one) for one in found.sites],
        holders=[holder_out(one, access) for one in found.holders],
        fits_now_request=None if found.fits_now_request is None else request_out(found.fits_now_request),
    )


def _site_choice_out(found: SiteChoice) -> SiteChoiceOut:
    return fill(SiteChoiceOut, found, reason=reason(found.reason), text=explanations.site_choice(found))


def _jobs_ahead_out(found: JobsAhead) -> JobsAheadOut:
    nearest = [explanations.request_ahead(one) for one in found.nearest]
    return fill(JobsAheadOut, found, nearest=nearest, text=explanations.ahead(found))


def holder_out(holder: Holder, access: Access) -> HolderOut:
    """The holder. Its id and name are for those who may see the workload."""
    visible = not holder.is_anonymous and access.may_on(Permission.SEE_WORKLOADS, holder.owner, holder.tenant)
    return fill(
        HolderOut,
        holder,
        workload_id=holder.workload_id if visible else None,
        name=holder.name if visible else "",
        holds=resources(holder.holds),
        text=explanations.holder(holder),
    )


def usage_report_out(report: UsageReport) -> UsageReportOut:
    return fill(
        UsageReportOut,
        report,
        report.figures,
        final=report.ended_at is not None,
        summary=usage_report_in_words(report),
        gpu_idle_share=report.idle_share,
    )


# --- requests -------------------------------------------------------------------------------------------------------


def parse_submission(body: SubmitIn) -> Submission:
    """The submission in the domain's quantities. Raises InvalidInput with the code of the field."""
    return Submission(
        kind=Kind(body.kind),
        command=tuple(body.command),
        name=body.name,
        environment=body.environment,
        cpus_milli=None if body.cpus is None else parse_cpus(body.cpus),
        memory_mib=body.memory_mib,
        gpu=parse_gpu_request(body.gpus),
        variables=tuple(body.variables.items()),
        secrets=tuple(body.secrets.items()),
        priority=_parse_priority(body.priority),
        time_limit_s=body.time_limit_s,
        grace_s=DEFAULT_GRACE_S if body.grace_s is None else body.grace_s,
        retry=RetryPolicy(body.retries) if body.backoff_s is None else RetryPolicy(body.retries, float(body.backoff_s)),
        depends_on=tuple(Dependency(one.id, Condition(one.condition)) for one in body.depends_on),
        array_size=_array_size(body),
        gang=body.nodes is not None,
        preemptible=body.preemptible,
        requeue=body.requeue,
        labels=parse_labels(body.on.items()),
        one_numa=body.one_numa,
        bundle=body.bundle,
        volumes=tuple(parse_volume(one) for one in body.volumes),
        port=body.port,
        health_path=body.health_path,
        health_interval_s=body.health_interval_s,
        near=body.near,
        tenant=body.tenant,
        key=body.key,
        owner=body.owner,
        groups=None if body.groups is None else tuple(body.groups),
        class_meeting=body.class_meeting or "",
    )


def _parse_priority(given: int | str) -> int | str:
    """A number (possibly given as text), or the name of a priority class."""
    if not isinstance(given, str) or not re.fullmatch(r"[+-]?\d{1,4}", given.strip(), re.ASCII):
        return given if isinstance(given, int) else given.strip()
    number = int(given)
    if not -_MAX_PRIORITY <= number <= _MAX_PRIORITY:
        raise InvalidInput(
            f"priority must be from -100 to 100, or the name of a priority class, not {number}", field="priority"
        )
    return number


def _array_size(body: SubmitIn) -> int:
    """The number of members; 0 for a single workload."""
    if body.nodes is not None and body.array is not None:
        raise InvalidInput(
            "a gang of `nodes` is already an array; set either nodes or array", field="nodes", code="invalid-array"
        )
    return body.nodes or body.array or 0


def parse_gpu_request(text: str | float | None) -> GpuRequest | None:
    """The GPU request. Raises InvalidInput, also for more than a pebibyte of VRAM."""
    gpu = parse_gpus(text)
    if gpu is not None and gpu.vram_mib > MAX_VRAM_MIB:
        raise InvalidInput("gpus requests more than 1 PiB of VRAM", field="gpus", code="invalid-gpus")
    return gpu


def parse_filter(query: WorkloadsQuery) -> Filter:
    return Filter(
        owner=query.owner,
        kinds=None if query.kind is None else (Kind(query.kind),),
        states=frozenset(State(name) for name in query.state) or None,
        site=query.site,
        node=query.node,
        array_id=query.array,
        cron_job=query.cron_job,
        environment=query.environment,
        text=query.text or None,
    )
