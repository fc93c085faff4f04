"""Routes of what a new workload can use: environments, volumes, uploaded files, and the launch options."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from commonage import messages
from commonage.api.fill import fill, optional_reason, reason
from commonage.api.routing import QUERY, Guarded, UnsupportedMediaType, access_for, asks, caller, context, problems
from commonage.control.catalogue.catalogue import EnvironmentView
from commonage.control.queries.launch import VolumeView
from commonage.control.queries.workloads import notices
from commonage.control.usage.homes import HomeView
from commonage.domain.errors import Forbidden
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.wire.environments import (
    EnvironmentList,
    EnvironmentOut,
    HomeOut,
    LaunchOptions,
    LaunchQuery,
    SizeChoice,
    VolumeList,
    VolumeOut,
)
from commonage.wire.workloads import BundleOut

router = APIRouter(route_class=Guarded)


@router.get("/volumes", tags=["volumes"], summary="List volumes", responses=problems())
@asks(Permission.SEE_TENANT)
async def list_volumes(request: Request) -> VolumeList:
    """The volumes that your workloads may mount, and the disk space that your home uses.

    Admins see the volumes of all tenants.
    """
    control, principal = context(request).control, caller(request)
    volumes = [volume_out(view) for view in control.volumes.offered(principal)]
    return VolumeList(items=volumes, home=_home_out(control.homes.of(principal)))


def _home_out(view: HomeView | None) -> HomeOut | None:
    if view is None:
        return None
    return fill(HomeOut, view, over=view.is_over, measured_at=view.at, text=messages.text(view.reason))


def volume_out(view: VolumeView) -> VolumeOut:
    """A volume that the caller may mount; `tenants` are those of the caller that may use it."""
    notes = [reason(note) for note in view.notes]
    return fill(VolumeOut, view, view.volume, in_memory=view.volume.memory, notes=notes)


BUNDLES_PATH = "/bundles"
_KINDS = ("application/gzip", "application/x-gzip", "application/x-tar+gzip", "application/octet-stream")
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    BUNDLES_PATH,
    tags=["bundles"],
    status_code=201,
    summary="Upload files",
    responses=problems("invalid-bundle", "too-large", "too-many-bundles", "too-many-uploads", "unsupported-media-type"),
    openapi_extra={"requestBody": {"required": True, "content": {"application/gzip": _BINARY}}},
)
@asks(Permission.SUBMIT)
async def send(request: Request) -> BundleOut:
    """Upload a tar.gz archive. Submit workloads with the returned `digest` as `bundle` to unpack it there.

    The same archive is stored once. It is deleted some time after the last workload that uses it has ended.
    """
    principal = caller(request)
    kind = request.headers.get("content-type", _KINDS[0]).partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise UnsupportedMediaType(f"the archive must be sent as {_KINDS[0]}, not {kind[:60]!r}")
    kept = await context(request).control.bundles.send(principal, request.stream())
    return BundleOut(digest=kept.digest, size_bytes=kept.size)


@router.get("/environments", tags=["environments"], summary="List environments", responses=problems())
@asks(Permission.SEE_TENANT)
async def list_environments(request: Request) -> EnvironmentList:
    """The environments that your workloads may run in, and whether they are ready."""
    principal = caller(request)
    views = context(request).control.environments.views(principal)
    return EnvironmentList(items=[_environment_out(view) for view in views])


@router.get(
    "/launch-options",
    tags=["installation"],
    summary="Show the options for a new workload",
    responses=problems("not-admin", *QUERY),
)
@asks(Permission.SEE_TENANT)
async def launch_options(request: Request, query: Annotated[LaunchQuery, Query()]) -> LaunchOptions:
    """Environments, volumes, GPU shares and limits for a new workload, and the resources that are free now."""
    principal = caller(request)
    if query.user is not None and query.user != principal.name:
        if not access_for(request).may(Permission.SUBMIT_FOR_OTHERS):
            raise Forbidden("only admins may see the launch options of another user", code="not-admin")
        principal = Principal(query.user, frozenset({Scope.READ, Scope.SUBMIT}), tuple(query.group))
    control = context(request).control
    shown = [notice.reason for notice in await notices(control.queries, principal)]
    home = control.homes.of(principal)
    if home is not None and home.is_over:
        shown.append(home.reason)
    view = control.launch.options(principal)
    return fill(
        LaunchOptions,
        view,
        environments=[_environment_out(one) for one in view.environments],
        gpu_choices=[fill(SizeChoice, one) for one in view.gpu_choices],
        volumes=[volume_out(one) for one in control.volumes.offered(principal)],
        priorities=[one.name for one in view.priority_classes],
        notices=[reason(one) for one in shown],
    )


def _environment_out(view: EnvironmentView) -> EnvironmentOut:
    # The status belongs to one site; its name is that of the environment.
    return fill(
        EnvironmentOut,
        view.environment,
        view.status,
        reason=optional_reason(view.status.reason),
        vram_mib=view.environment.min_vram_mib,
    )
