"""Routes of what a new workload can use: environments, volumes, uploaded files, and the launch options."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from commonage import messages
from commonage.api.fill import fill, optional_reason, reason
from commonage.api.routes.workloads import INVALID_SUBMISSION, workload_for
from commonage.api.routing import (
    BODY,
    QUERY,
    Guarded,
    UnsupportedMediaType,
    access_for,
    asks,
    body_of,
    caller,
    context,
    problems,
    read_json,
)
from commonage.control.catalogue.builds import NewBuild
from commonage.control.catalogue.catalogue import EnvironmentView
from commonage.control.queries.launch import VolumeView
from commonage.control.queries.workloads import notices
from commonage.control.usage.homes import HomeView
from commonage.domain.builds import BuildOrder, BuildSource, SourceKind
from commonage.domain.errors import Forbidden
from commonage.domain.images import Contents
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.requests import parse_cpus
from commonage.wire.environments import (
    EnvironmentBuildIn,
    EnvironmentDetailsOut,
    EnvironmentList,
    EnvironmentOut,
    HomeOut,
    KernelContentsOut,
    LaunchOptions,
    LaunchQuery,
    ProfileChoice,
    SizeChoice,
    VolumeList,
    VolumeOut,
)
from commonage.wire.workloads import BundleOut, WorkloadOut

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
_BUILD = {"name": "lab/nlp", "source": "requirements", "text": "numpy\ntransformers>=4\n"}
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


@router.post(
    "/environments",
    tags=["environments"],
    status_code=201,
    summary="Build an environment",
    responses={
        **problems(*BODY, *INVALID_SUBMISSION, "invalid-build", "invalid-image", "no-builder", "conflict"),
        201: {"description": "The build is queued, and durable. Its end registers the environment."},
    },
    openapi_extra=body_of(EnvironmentBuildIn, _BUILD),
)
@asks(Permission.MANAGE_ENVIRONMENTS)
async def build(request: Request) -> WorkloadOut:
    """Build an environment of a tenant, as a job of that tenant with a log. For managers of the tenant.

    When the job succeeds, the environment exists, or has its new contents. Running workloads continue in the old one.
    """
    api, principal = context(request), caller(request)
    body = await read_json(request, EnvironmentBuildIn)
    made = await api.control.builds.submit(principal, parse_build(body))
    return workload_for(api, principal, made)


def parse_build(body: EnvironmentBuildIn) -> NewBuild:
    source = BuildSource(SourceKind(body.source), body.text, body.url, body.ref)
    return NewBuild(
        BuildOrder(body.name, source, body.title, body.description),
        body.bundle,
        None if body.cpus is None else parse_cpus(body.cpus),
        body.memory_mib,
    )


@router.get(
    "/environments/{name:path}",
    tags=["environments"],
    summary="Show an environment",
    responses=problems("environment-not-found"),
)
@asks(Permission.SEE_TENANT)
async def show(request: Request, name: str) -> EnvironmentDetailsOut:
    """An environment with its kernels and their packages, its apps, its size and its age."""
    view = context(request).control.environments.one(caller(request), name)
    contents = view.status.contents or Contents()
    tenant = view.environment.tenant
    return EnvironmentDetailsOut(
        environment=_environment_out(view),
        kernels=[fill(KernelContentsOut, kernel) for kernel in contents.kernels],
        may_change=tenant is not None and access_for(request).may(Permission.MANAGE_ENVIRONMENTS, tenant),
    )


@router.delete(
    "/environments/{name:path}",
    tags=["environments"],
    summary="Remove an environment that was built here",
    responses=problems("environment-not-found", "conflict"),
)
@asks(Permission.MANAGE_ENVIRONMENTS)
async def remove(request: Request, name: str) -> EnvironmentOut:
    """Running workloads continue, waiting ones are held, and new ones are refused. For managers of its tenant."""
    control, principal = context(request).control, caller(request)
    gone = control.environments.one(principal, name)
    await control.builds.remove(principal, name)
    return _environment_out(gone)


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
        profiles=[
            fill(
                ProfileChoice,
                one,
                cpus=None if one.cpus_milli is None else one.cpus_milli / 1000,
                gpus=one.gpus or None,
                on=dict(one.labels),
            )
            for one in view.profiles
        ],
        notices=[reason(one) for one in shown],
    )


def _environment_out(view: EnvironmentView) -> EnvironmentOut:
    # The status belongs to one site; its name is that of the environment.
    environment, contents = view.environment, view.status.contents or Contents()
    kernels = [one.name for one in contents.kernels] or [one.name for one in environment.kernels]
    return fill(
        EnvironmentOut,
        environment,
        contents,
        view.status,
        reason=optional_reason(view.status.reason),
        vram_mib=environment.min_vram_mib,
        kernels=kernels,
        built_by=environment.built_by or None,
    )
