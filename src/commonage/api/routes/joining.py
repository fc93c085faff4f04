"""Routes of joining: join tokens, user data for clouds, and the files for a join over SSH. All for admins.

The join script is outside the API, because the machine that fetches it has no account.
"""

from __future__ import annotations

import base64

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from commonage.api.fill import fill
from commonage.api.routing import BODY, Guarded, answer, body_of, caller, context, expiry, problems, read_json
from commonage.domain.errors import Conflict, InvalidInput
from commonage.domain.principals import Scope
from commonage.ports.joining import Joining
from commonage.wire.hub import PORTAL_PATH
from commonage.wire.nodes import DoneOut, JoinKitOut, JoinTokenIn, JoinTokenOut

router = APIRouter(route_class=Guarded, tags=["nodes"])


@router.post(
    "/join-tokens",
    status_code=201,
    summary="Create a join token",
    response_model=JoinTokenOut,
    responses=problems(*BODY, "conflict"),
    openapi_extra=body_of(JoinTokenIn, {"for_s": 3600}, required=False),
)
async def make(request: Request) -> Response:
    """Create a token with which any number of machines may join as nodes until it expires. For admins.

    It expires no later than the token of the request.
    """
    caller(request).need(Scope.ADMIN)
    joining = _joining(request)
    body = await read_json(request, JoinTokenIn, optional=True)
    latest, now = await expiry(request), context(request).control.clock.now()
    if latest is not None and now + body.for_s > latest:
        raise InvalidInput(
            f"a join token cannot last {body.for_s} seconds: the token of this request expires in {int(latest - now)} "
            "seconds; request a shorter lifetime, or use another token",
            field="for_s",
        )
    made = await joining.token(body.for_s)
    user_data = await joining.template(made.token, body.options) if body.cloud_init else None
    return answer(fill(JoinTokenOut, made, script_sha256=joining.kit().script_sha256, user_data=user_data), 201)


@router.delete("/join-tokens", summary="Revoke all join tokens", response_model=DoneOut, responses=problems("conflict"))
async def revoke(request: Request) -> Response:
    """Also rotate the Swarm's own worker token. Nodes that have joined stay. For admins."""
    caller(request).need(Scope.ADMIN)
    return answer(DoneOut(done=list(await _joining(request).revoke_tokens())))


@router.get(
    "/join-kit",
    summary="Get the files for a join over SSH",
    response_model=JoinKitOut,
    responses=problems("conflict"),
)
async def kit(request: Request) -> Response:
    """The join script and the packed program, which `commonage node join` copies to the machine. For admins."""
    caller(request).need(Scope.ADMIN)
    found = _joining(request).kit()
    packed = base64.b64encode(found.bundle).decode()
    return answer(fill(JoinKitOut, found, bundle=packed))


def script_route(joining: Joining) -> Route:
    """`GET /services/commonage/join`: the join script, without authentication. It contains no secret."""

    async def script(_: Request) -> Response:
        return PlainTextResponse(joining.kit().script, headers={"Cache-Control": "no-cache"})

    return Route(f"{PORTAL_PATH}join", script, methods=["GET"])


def _joining(request: Request) -> Joining:
    joining = context(request).joining
    if joining is None:
        raise Conflict('no node can join this site; an admin must set `site_address` (and `engine = "swarm"`)')
    return joining
