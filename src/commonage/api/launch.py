"""Route of the launch options: what a form that starts something has to offer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import encode, encode_reasons
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.api.volumes import volume
from commonage.control.queries.notices import notices
from commonage.domain.errors import Forbidden
from commonage.domain.principals import Principal, Scope
from commonage.wire.platform import LaunchOptions
from commonage.wire.queries import LaunchQuery

router = APIRouter(route_class=Guarded, tags=["installation"])


@router.get(
    "/launch-options",
    summary="What you may have, and what is free now",
    response_model=LaunchOptions,
    responses=problems("not-admin", "invalid-parameter", "unknown-field"),
)
async def launch_options(request: Request, query: Annotated[LaunchQuery, Query()]) -> Response:
    """Environments, volumes, shares of GPUs with whether each could start now, and the bounds."""
    who = caller(request)
    if query.user is not None and query.user != who.name:
        if not who.is_admin:
            raise Forbidden("only admins may see what somebody else may have", code="not-admin")
        who = Principal(query.user, frozenset({Scope.READ, Scope.SUBMIT}), tuple(query.group))
    control = context(request).control
    told = [encode_reasons.reason(one.reason) for one in await notices(control.look, who)]
    home = control.homes.of(who)
    told += [encode_reasons.reason(home.reason)] if home is not None and home.is_over else []
    more = {"notices": told, "volumes": [volume(one) for one in control.volumes.offered(who)]}
    return answer(encode.launch_options(control.node_pool.launch_options(who)).model_copy(update=more))
