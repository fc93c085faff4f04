"""Routes of workloads: submit, dry run, list, one, stop. What belongs to one workload stands in `workload_parts`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import decode, encode, encode_usage_reports
from commonage.api.ids import WORKLOAD, known_form
from commonage.api.routing import Context, Guarded, answer, body_of, caller, context, problems, read_json
from commonage.domain.principals import Principal
from commonage.domain.workloads import Workload
from commonage.ports.store import Filter
from commonage.wire.queries import WorkloadsQuery
from commonage.wire.workloads import ExplanationOut, StopIn, SubmitIn, SubmitOut, WorkloadOut, WorkloadPage

router = APIRouter(route_class=Guarded, tags=["workloads"])

_INVALID = (
    "invalid-input",
    "invalid-json",
    "invalid-encoding",
    "unsupported-media-type",
    "too-large",
    "unknown-field",
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
    "invalid-label",
    "forbidden",
    "unschedulable",
    "not-admin",
    "not-a-member",
    "bundle-not-found",
    "too-many-bundles",
    "dependency-broken",
    "too-many-workloads",
)
_EXAMPLE = {"command": ["python", "train.py"], "gpus": "6GiB", "time_limit_s": 1800, "key": "first-try"}
_PAGE_OF_IDS = 500


@router.post(
    "/workloads",
    status_code=201,
    summary="Submit a workload, or an array of them",
    response_model=SubmitOut,
    responses={
        **problems(*_INVALID, "key-taken", "key-reused", "user-not-found"),
        200: {"model": SubmitOut, "description": "Your key had made it before."},
        201: {"description": "Made, and durable."},
    },
    openapi_extra=body_of(SubmitIn, _EXAMPLE),
)
async def submit(request: Request) -> Response:
    """Durable when it answers. With a `key` of your own, submitting again gives the same workload (status 200).

    A session asked for by a user is started through the hub; the answer is the workload that came of it.
    """
    at, who = context(request), caller(request)
    ask = decode.submission(await read_json(request, SubmitIn))
    made = await at.control.work.submit(who, ask)
    first = made.workloads[0]
    ids = [one.id for one in made.workloads]
    if not made.created and first.spec.array_size:
        ids = await _members(at, who, first)
    message = SubmitOut(workload=shown(at, who, first), created=made.created, count=len(ids), ids=ids)
    return answer(message, 201 if made.created else 200)


async def _members(at: Context, who: Principal, first: Workload) -> list[str]:
    """The ids of an array, in the order of its indices: the answer to a key that had made one before."""
    which, cursor, found = Filter(array_id=first.id), None, list[Workload]()
    while True:
        page = await at.control.look.workloads(who, which, limit=_PAGE_OF_IDS, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return [one.id for one in sorted(found, key=lambda one: one.array_index or 0)]


@router.post(
    "/workloads/dry-run",
    summary="What would become of a workload",
    response_model=ExplanationOut,
    responses=problems(*_INVALID),
    openapi_extra=body_of(SubmitIn, _EXAMPLE),
)
async def dry_run(request: Request) -> Response:
    """The same checks and the same answer as a submit would get, and an explanation; nothing is made.

    `suggestion` says what your last runs of the same command in the same environment needed.
    """
    at, who = context(request), caller(request)
    ask = decode.submission(await read_json(request, SubmitIn))
    found = await at.control.work.dry_run(who, ask)
    message = encode.explanation(found, None, who)
    suggestion = await at.control.advice.on(who, ask)
    if suggestion is not None:
        message = message.model_copy(update={"suggestion": encode_usage_reports.suggestion(suggestion)})
    return answer(message)


@router.get(
    "/workloads",
    summary="List workloads, newest first",
    response_model=WorkloadPage,
    responses=problems("invalid-parameter", "invalid-cursor", "unknown-field"),
)
async def list_workloads(request: Request, query: Annotated[WorkloadsQuery, Query()]) -> Response:
    """Your own; admins see everybody's. Ask again with `cursor` for the next page."""
    at, who = context(request), caller(request)
    which = decode.which(query)
    page = await at.control.look.workloads(who, which, limit=query.limit, cursor=query.cursor)
    counts = encode.counts(await at.control.look.counts(who, which)) if query.counts else {}
    items = [shown(at, who, one) for one in page.items]
    return answer(WorkloadPage(items=items, next_cursor=page.next_cursor, counts=counts))


@router.get(
    WORKLOAD,
    summary="One workload, as it stands now",
    response_model=WorkloadOut,
    responses=problems("workload-not-found"),
)
async def one_workload(request: Request, workload_id: str) -> Response:
    """Its state, the reason for it, where it runs, and what it used."""
    at, who = context(request), caller(request)
    found = await at.control.look.workload(who, known_form(workload_id))
    message, usage_report = shown(at, who, found), await at.control.usage_reports.of(found)
    if usage_report is not None:
        message = message.model_copy(update={"usage_report": encode_usage_reports.usage_report(usage_report)})
    return answer(message)


@router.post(
    WORKLOAD + "/stop",
    summary="Have a workload end",
    response_model=WorkloadOut,
    responses=problems(
        "workload-not-found", "already-ended", "invalid-input", "unknown-field", "invalid-json", "invalid-encoding",
        "unsupported-media-type", "too-large",
    ),
    openapi_extra=body_of(StopIn, {"reason": "wrong data"}, required=False),
)  # fmt: skip
async def stop(request: Request, workload_id: str) -> Response:
    """It gets its grace to end by itself, then it is ended by force. Asking twice is asking once."""
    at, who = context(request), caller(request)
    ask = await read_json(request, StopIn, optional=True)
    found = await at.control.work.stop(who, known_form(workload_id), ask.reason)
    return answer(shown(at, who, found))


def shown(at: Context, who: Principal, found: Workload) -> WorkloadOut:
    """A workload as this caller may see it."""
    control = at.control
    standing, origin = control.look.standing(found), control.settings.session_origin
    return encode.workload(found, standing, origin, internal=at.auth.is_spawner(who))
