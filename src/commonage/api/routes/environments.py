"""Routes of environments: the catalogue, and the options for a new workload."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill, optional_reason, reason
from commonage.api.routes.volumes import volume_out
from commonage.api.routing import QUERY, Guarded, answer, caller, context, problems
from commonage.control.catalogue.catalogue import EnvironmentView
from commonage.control.queries.workloads import notices
from commonage.domain.errors import Forbidden
from commonage.domain.principals import Principal, Scope
from commonage.wire.environments import EnvironmentList, EnvironmentOut, LaunchOptions, LaunchQuery, SizeChoice

router = APIRouter(route_class=Guarded)


@router.get(
    "/environments",
    tags=["environments"],
    summary="List environments",
    response_model=EnvironmentList,
    responses=problems(),
)
async def list_environments(request: Request) -> Response:
    """The environments that your workloads may run in, and whether they are ready."""
    principal = caller(request)
    principal.need(Scope.READ)
    views = context(request).control.environments.views(principal)
    return answer(EnvironmentList(items=[_environment_out(view) for view in views]))


@router.get(
    "/launch-options",
    tags=["installation"],
    summary="Show the options for a new workload",
    response_model=LaunchOptions,
    responses=problems("not-admin", *QUERY),
)
async def launch_options(request: Request, query: Annotated[LaunchQuery, Query()]) -> Response:
    """Environments, volumes, GPU shares and limits for a new workload, and the resources that are free now."""
    principal = caller(request)
    if query.user is not None and query.user != principal.name:
        if not principal.is_admin:
            raise Forbidden("only admins may see the launch options of another user", code="not-admin")
        principal = Principal(query.user, frozenset({Scope.READ, Scope.SUBMIT}), tuple(query.group))
    control = context(request).control
    shown = [notice.reason for notice in await notices(control.queries, principal)]
    home = control.homes.of(principal)
    if home is not None and home.is_over:
        shown.append(home.reason)
    view = control.launch.options(principal)
    return answer(
        fill(
            LaunchOptions,
            view,
            environments=[_environment_out(one) for one in view.environments],
            gpu_choices=[fill(SizeChoice, one) for one in view.gpu_choices],
            volumes=[volume_out(one) for one in control.volumes.offered(principal)],
            priorities=[one.name for one in view.priority_classes],
            notices=[reason(one) for one in shown],
        )
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
