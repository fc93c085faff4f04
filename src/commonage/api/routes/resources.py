"""Routes of platform resources: read and change one, plan and apply documents, export, and their JSON Schema."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from commonage.api.fill import fill, reason
from commonage.api.routing import BODY, QUERY, Guarded, answer, asks, body_of, caller, context, problems, read_json
from commonage.control.resources.affected import Affected
from commonage.control.resources.resources import ANY_VERSION, Documents, Plan, PlannedChange
from commonage.domain.errors import InvalidInput
from commonage.domain.permissions import Permission
from commonage.domain.resources import GitState, StoredResource
from commonage.resources.schema import schema
from commonage.wire.resources import (
    AffectedOut,
    AffectedWorkloadOut,
    ApplyIn,
    ExportOut,
    GitSourceIn,
    GitSourceList,
    GitSourceOut,
    PlanIn,
    PlanOut,
    ResourceChangeOut,
    ResourceIn,
    ResourceList,
    ResourceOut,
)

router = APIRouter(route_class=Guarded)
_ETAG = re.compile(r'(?:W/)?"(\d{1,9})"')
_TENANT = {"kind": "Tenant", "name": "vision-lab", "weight": 2, "nominal": {"gpus": 4, "memory": "256GiB"}}
_DOCUMENTS = (
    "unknown-kind",
    "unknown-reference",
    "managed-elsewhere",
    "invalid-volume",
    "name-not-released",
    "site-would-open",
)
_VERSION: dict[str, Any] = {
    "parameters": [
        {
            "name": "If-Match",
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": 'The version that the change follows, `"3"`, or `*` for any. Without it, the resource must '
            "not exist.",
        }
    ]
}


@router.get("/resources", tags=["resources"], summary="List resources", responses=problems())
@asks(Permission.SEE_PLATFORM)
async def list_resources(request: Request) -> ResourceList:
    """All declared resources. For admins."""
    found = context(request).control.resources.all(caller(request))
    return ResourceList(items=[fill(ResourceOut, one) for one in found])


@router.get(
    "/resources/{kind}", tags=["resources"], summary="List resources of a kind", responses=problems("kind-not-found")
)
@asks(Permission.SEE_PLATFORM)
async def list_kind(request: Request, kind: str) -> ResourceList:
    """The declared resources of one kind, by name. For admins. Built-in ones are not listed until they are changed."""
    found = context(request).control.resources.all(caller(request), kind)
    return ResourceList(items=[fill(ResourceOut, one) for one in found])


@router.get(
    "/resources/{kind}/{name:path}",
    tags=["resources"],
    summary="Show a resource",
    responses=problems("kind-not-found", "resource-not-found"),
)
@asks(Permission.SEE_PLATFORM)
async def one_resource(request: Request, response: Response, kind: str, name: str) -> ResourceOut:
    """One resource. The header `ETag` has its version. For admins."""
    found = context(request).control.resources.one(caller(request), kind, name)
    response.headers["ETag"] = _etag(found)
    return fill(ResourceOut, found)


@router.put(
    "/resources/{kind}/{name:path}",
    tags=["resources"],
    summary="Create or replace a resource",
    response_model=ResourceOut,
    responses=problems(*BODY, *_DOCUMENTS, "kind-not-found", "version-mismatch", "invalid-parameter"),
    openapi_extra={**body_of(ResourceIn, {"document": _TENANT}), **_VERSION},
)
@asks(Permission.MANAGE_PLATFORM)
async def put_resource(request: Request, kind: str, name: str) -> Response:
    """Replace all fields of a resource. The change is in force when this returns. For admins."""
    principal = caller(request)
    document = (await read_json(request, ResourceIn)).document
    for what, value in (("kind", kind), ("name", name)):
        if document.get(what, value) != value:
            raise InvalidInput(f"the document has another {what} than the path: {value}", field=f"document.{what}")
    put = await context(request).control.resources.put(principal, document, _version(request), kind=kind, name=name)
    response = answer(fill(ResourceOut, put))
    response.headers["ETag"] = _etag(put)
    return response


@router.delete(
    "/resources/{kind}/{name:path}",
    tags=["resources"],
    summary="Delete a resource",
    responses=problems(
        *QUERY, "kind-not-found", "resource-not-found", "version-mismatch", "resource-in-use", "managed-elsewhere",
        "unknown-reference", "site-would-open", "tenant-not-empty",
    ),
    openapi_extra=_VERSION,
)  # fmt: skip
@asks(Permission.MANAGE_PLATFORM)
async def delete_resource(request: Request, kind: str, name: str, force: bool = False) -> ResourceOut:
    """Delete a resource; a built-in one of its name is in force again. Refused while workloads use it, unless `force`.

    A tenant with work, folders or members is refused in any case: remove it by an offboarding. For admins.
    """
    control, principal = context(request).control, caller(request)
    deleted = await control.resources.delete(principal, kind, name, _version(request), force=force)
    return fill(ResourceOut, deleted)


@router.post(
    "/plan",
    tags=["resources"],
    summary="Plan a change of resources",
    responses=problems(*BODY, *_DOCUMENTS),
    openapi_extra=body_of(PlanIn, {"documents": [_TENANT]}),
)
@asks(Permission.SEE_PLATFORM)
async def plan(request: Request) -> PlanOut:
    """Preview `apply`: the changes, and the running workloads and people that they affect. For admins.

    A change with a `refusal` cannot be applied: a tenant with work or folders is removed by an offboarding.
    """
    principal = caller(request)
    return _plan_out(
        await context(request).control.resources.plan(principal, _documents(await read_json(request, PlanIn)))
    )


@router.post(
    "/apply",
    tags=["resources"],
    summary="Apply resources",
    responses=problems(*BODY, *_DOCUMENTS, "version-mismatch", "tenant-not-empty"),
    openapi_extra=body_of(ApplyIn, {"documents": [_TENANT], "revision": 12}),
)
@asks(Permission.MANAGE_PLATFORM)
async def apply(request: Request) -> PlanOut:
    """Put documents in force: all of them, or none. Returns the changes. For admins."""
    principal = caller(request)
    body = await read_json(request, ApplyIn)
    return _plan_out(await context(request).control.resources.apply(principal, _documents(body), body.revision))


@router.get("/export", tags=["resources"], summary="Export all resources", responses=problems())
@asks(Permission.SEE_PLATFORM)
async def export(request: Request) -> ExportOut:
    """All declared resources as documents: applying them changes nothing. For admins."""
    resources = context(request).control.resources
    return ExportOut(revision=resources.revision, documents=[one.document for one in resources.all(caller(request))])


@router.get("/schema/commonage.yml.json", tags=["resources"], summary="JSON Schema of resources", responses=problems())
@asks(None)
async def json_schema() -> JSONResponse:
    """The JSON Schema of one document of a `commonage.yml` file, for editors and checks."""
    return JSONResponse(schema())


@router.get("/git-sources", tags=["resources"], summary="List git sources", responses=problems())
@asks(Permission.SEE_PLATFORM)
async def list_git_sources(request: Request) -> GitSourceList:
    """Git branches that manage resources, with their last commit or error. For admins."""
    found = context(request).control.git_sources.all(caller(request))
    return GitSourceList(items=[fill(GitSourceOut, one) for one in found])


@router.put(
    "/git-sources/{name:path}",
    tags=["resources"],
    summary="Report the state of a git source",
    responses=problems(*BODY),
    openapi_extra=body_of(GitSourceIn, {"state": "applied", "commit": "0" * 40, "message": "1 change"}),
)
@asks(Permission.MANAGE_PLATFORM)
async def report_git_source(request: Request, name: str) -> GitSourceOut:
    """Called by `commonage gitops` after each round. For admins."""
    principal = caller(request)
    body = await read_json(request, GitSourceIn)
    sources = context(request).control.git_sources
    reported = await sources.report(principal, name, GitState(body.state), commit=body.commit, message=body.message)
    return fill(GitSourceOut, reported)


def _documents(body: PlanIn) -> Documents:
    return Documents(body.documents, body.managed_by, body.prune, body.take_over)


def _plan_out(found: Plan) -> PlanOut:
    return PlanOut(revision=found.revision, changes=[_change_out(one) for one in found.changes])


def _change_out(planned: PlannedChange) -> ResourceChangeOut:
    affected = [_affected_out(one) for one in planned.affected]
    refusal = None if planned.refusal is None else reason(planned.refusal)
    return fill(ResourceChangeOut, planned.change, affected=affected, refusal=refusal)


def _affected_out(affected: Affected) -> AffectedOut:
    workloads = [
        AffectedWorkloadOut(id=one.id, name=one.spec.name, owner=one.spec.owner, state=one.state.value)
        for one in affected.workloads
    ]
    return AffectedOut(reason=reason(affected.reason), workloads=workloads, people=list(affected.people))


def _etag(resource: StoredResource) -> str:
    return f'"{resource.version}"'


def _version(request: Request) -> int:
    """The version of the header If-Match; 0, for a resource that must not exist, without it. Raises InvalidInput."""
    text = request.headers.get("if-match", "").strip()
    if not text:
        return 0
    if text == "*":
        return ANY_VERSION
    found = _ETAG.fullmatch(text)
    if found is None:
        raise InvalidInput(
            f'If-Match is {text[:40]!r}; write a version like "3", or *', field="If-Match", code="invalid-parameter"
        )
    return int(found[1])
