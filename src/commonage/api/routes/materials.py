"""Routes of materials: their sync, the caller's copies, their credentials, and the webhook of a repository's server."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill, optional_reason
from commonage.api.routing import BODY, Guarded, asks, body_of, caller, client_address, context, problems, read_json
from commonage.control.materials import MaterialView
from commonage.domain.materials import PLACE, MaterialCopy, Version, printable
from commonage.domain.permissions import Permission
from commonage.ports.materials import MaterialAccess
from commonage.wire.hub import API_PATH
from commonage.wire.materials import (
    MaterialAccessOut,
    MaterialCopyOut,
    MaterialList,
    MaterialOut,
    MaterialTokenIn,
    ResetIn,
)

_MAX_LISTED = 200
router = APIRouter(route_class=Guarded)


@router.get("/materials", tags=["materials"], summary="List materials", responses=problems())
@asks(Permission.SEE_TENANT)
async def list_materials(request: Request) -> MaterialList:
    """The materials that your sessions may have, with the state of their sync and of your copies."""
    views = await context(request).control.materials.all(caller(request))
    return MaterialList(items=[material_out(one) for one in views])


@router.get(
    "/materials/{name}", tags=["materials"], summary="Show a material", responses=problems("material-not-found")
)
@asks(Permission.SEE_TENANT)
async def show(request: Request, name: str) -> MaterialOut:
    """One material, the state of its sync, and your copy."""
    return material_out(await context(request).control.materials.one(caller(request), name))


@router.post(
    "/materials/{name}/sync",
    tags=["materials"],
    status_code=202,
    summary="Sync a material now",
    responses=problems("material-not-found"),
)
@asks(Permission.MANAGE_MATERIALS)
async def sync(request: Request, name: str) -> MaterialOut:
    """Sync with the repository now. `synced_at` and `error` show the result."""
    return material_out(await context(request).control.materials.sync_now(caller(request), name))


@router.post(
    "/materials/{name}/reset",
    tags=["materials"],
    summary="Reset your copy of a material",
    responses=problems("material-not-found", "material-without-version", "unknown-file", *BODY),
    openapi_extra=body_of(ResetIn, {"files": ["week-1/lab.ipynb"]}, required=False),
)
@asks(Permission.SUBMIT)
async def reset(request: Request, name: str) -> MaterialOut:
    """Reset files of your copy to the material. A file that you edited is kept under another name."""
    asked = await read_json(request, ResetIn, optional=True)
    return material_out(await context(request).control.materials.reset(caller(request), name, asked.files))


@router.get(
    "/materials/{name}/access",
    tags=["materials"],
    summary="Show the credentials of a material",
    responses=problems("material-not-found"),
)
@asks(Permission.MANAGE_MATERIALS)
async def show_access(request: Request, name: str) -> MaterialAccessOut:
    """The deploy key to add to the repository, and the address and secret of the webhook."""
    return access_out(name, await context(request).control.materials.access(caller(request), name))


@router.put(
    "/materials/{name}/token",
    tags=["materials"],
    summary="Set the token of a material",
    responses=problems("material-not-found", *BODY),
    openapi_extra=body_of(MaterialTokenIn, {"token": "github_pat_11A"}),
)
@asks(Permission.MANAGE_MATERIALS)
async def set_token(request: Request, name: str) -> MaterialAccessOut:
    """Set or remove the token with which the repository is read over HTTPS."""
    asked = await read_json(request, MaterialTokenIn)
    control, principal = context(request).control, caller(request)
    return access_out(name, await control.materials.set_token(principal, name, asked.user, asked.token))


public = APIRouter()


@public.post(
    "/materials/{name}/webhook",
    tags=["materials"],
    status_code=202,
    summary="Report a push",
    responses=problems(),
    openapi_extra={"security": []},
)
@asks(None)
async def webhook(request: Request, name: str) -> Response:
    """Called by GitHub (signed with `X-Hub-Signature-256`) or GitLab (with `X-Gitlab-Token`) after a push.

    The body only counts for its signature: the repository is asked for its newest commit.
    """
    control, headers = context(request).control, request.headers
    github, gitlab = headers.get("x-hub-signature-256", ""), headers.get("x-gitlab-token", "")
    with context(request).failed.counted(f"webhook {name} {github} {gitlab}", client_address(request)):
        await control.materials.webhook(name, await request.body(), github, gitlab)
    return Response(status_code=202)


router.routes.extend(public.routes)


def material_out(view: MaterialView) -> MaterialOut:
    version = view.version or Version("", "", 0.0)
    return fill(
        MaterialOut,
        view,
        view.volume,
        view.material,
        repository=view.material.repository if view.may_manage else None,
        commit=version.commit or None,
        published_at=version.published_at or None,
        files=len(version.files),
        size_bytes=version.size_bytes,
        skipped=version.skipped,
        syncing=optional_reason(view.syncing),
        error=optional_reason(view.error),
        place=f"~/{PLACE}/{view.volume.name}",
        mine=None if view.copy is None else _copy_out(view.copy, version),
    )


def _copy_out(copy: MaterialCopy, version: Version) -> MaterialCopyOut:
    kinds = ("edited", "offered", "deleted", "withdrawn", "blocked")
    listed = {kind: [printable(one) for one in getattr(copy, kind)[:_MAX_LISTED]] for kind in kinds}
    is_current = bool(copy.tree) and copy.tree == version.tree
    return fill(MaterialCopyOut, copy, is_current=is_current, error=optional_reason(copy.error), **listed)


def access_out(name: str, access: MaterialAccess) -> MaterialAccessOut:
    return fill(MaterialAccessOut, access, webhook_path=f"{API_PATH}/materials/{name}/webhook")
