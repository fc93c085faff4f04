"""Route of bundles: files that are uploaded before the workloads that use them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.routing import Guarded, UnsupportedMediaType, answer, caller, context, problems
from commonage.domain.principals import Scope
from commonage.wire.workloads import BundleOut

router = APIRouter(route_class=Guarded, tags=["bundles"])

PATH = "/bundles"
_KINDS = ("application/gzip", "application/x-gzip", "application/x-tar+gzip", "application/octet-stream")
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    PATH,
    status_code=201,
    summary="Upload files",
    response_model=BundleOut,
    responses=problems("invalid-bundle", "too-large", "too-many-bundles", "too-many-uploads", "unsupported-media-type"),
    openapi_extra={"requestBody": {"required": True, "content": {"application/gzip": _BINARY}}},
)
async def send(request: Request) -> Response:
    """Upload a tar.gz archive. Submit workloads with the returned `digest` as `bundle` to unpack it there.

    The same archive is stored once. It is deleted some time after the last workload that uses it has ended.
    """
    principal = caller(request)
    principal.need(Scope.SUBMIT)
    kind = request.headers.get("content-type", _KINDS[0]).partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise UnsupportedMediaType(f"the archive must be sent as {_KINDS[0]}, not {kind[:60]!r}")
    kept = await context(request).control.bundles.send(principal, request.stream())
    return answer(BundleOut(digest=kept.digest, size_bytes=kept.size), 201)
