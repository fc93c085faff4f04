"""Route of bundles: files sent ahead of the workloads that need them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.routing import Guarded, NotJson, answer, caller, context, problems
from commonage.domain.principals import Scope
from commonage.wire.workloads import BundleOut

router = APIRouter(route_class=Guarded, tags=["bundles"])

PATH = "/bundles"
_KINDS = ("application/gzip", "application/x-gzip", "application/x-tar+gzip", "application/octet-stream")
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    PATH,
    status_code=201,
    summary="Send files along",
    response_model=BundleOut,
    responses=problems("invalid-bundle", "too-large", "too-many-bundles", "too-many-uploads", "unsupported-media-type"),
    openapi_extra={"requestBody": {"required": True, "content": {"application/gzip": _BINARY}}},
)
async def send(request: Request) -> Response:
    """A tar.gz archive, kept for you under its SHA-256. Submit with this `digest` as `bundle` to have it unpacked.

    Sending the same files twice keeps them once. They are removed some time after the last workload that needs them has
    ended.
    """
    who = caller(request)
    who.need(Scope.SUBMIT)
    kind = request.headers.get("content-type", _KINDS[0]).partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise NotJson(f"files are sent as {_KINDS[0]}, not {kind[:60]!r}")
    kept = await context(request).control.bundles.send(who, request.stream())
    return answer(BundleOut(digest=kept.digest, size_bytes=kept.size), 201)
