"""Routes of joining: tokens and templates for new machines, and what to bring to one.

All for admins. The script that a node fetches is no part of the API: whoever asks for it has no account here.
"""

from __future__ import annotations

import base64

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from commonage.api.routing import Guarded, answer, body_of, caller, context, expiry, problems, read_json
from commonage.domain.errors import Conflict, InvalidInput
from commonage.domain.principals import Scope
from commonage.ports.joining import Joining
from commonage.wire.hub import PORTAL_PATH
from commonage.wire.joining import DoneOut, JoinKitOut, JoinTokenIn, JoinTokenOut

router = APIRouter(route_class=Guarded, tags=["nodes"])


@router.post(
    "/join-tokens",
    status_code=201,
    summary="Make a token with which nodes join",
    response_model=JoinTokenOut,
    responses=problems(
        "conflict", "invalid-input", "unknown-field", "invalid-json", "invalid-encoding", "unsupported-media-type",
        "too-large",
    ),
    openapi_extra=body_of(JoinTokenIn, {"for_s": 3600}, required=False),
)  # fmt: skip
async def make(request: Request) -> Response:
    """It is good for any number of nodes until it expires, and for nothing else. For admins.

    It never lasts longer than the token that it is asked with.
    """
    caller(request).need(Scope.ADMIN)
    joining = _joining(request)
    ask = await read_json(request, JoinTokenIn, optional=True)
    latest, now = await expiry(request), context(request).control.clock.now()
    if latest is not None and now + ask.for_s > latest:
        raise InvalidInput(
            f"a join token cannot last {ask.for_s} seconds: the token it is asked with expires in {int(latest - now)}; "
            "ask for a shorter one, or with another token",
            field="for_s",
        )
    made = await joining.token(ask.for_s)
    user_data = await joining.template(made.token, ask.options) if ask.cloud_init else None
    return answer(
        JoinTokenOut(
            token=made.token,
            expires_at=made.expires_at,
            url=made.url,
            script_sha256=joining.kit().script_sha256,
            command=made.command,
            user_data=user_data,
        ),
        201,
    )


@router.delete("/join-tokens", summary="Revoke all join tokens", response_model=DoneOut, responses=problems("conflict"))
async def revoke(request: Request) -> Response:
    """With them ends the Swarm's own token for workers. Nodes that have joined stay. For admins."""
    caller(request).need(Scope.ADMIN)
    return answer(DoneOut(done=list(await _joining(request).revoke_tokens())))


@router.get(
    "/join-kit",
    summary="What to bring to a machine that joins over SSH",
    response_model=JoinKitOut,
    responses=problems("conflict"),
)
async def kit(request: Request) -> Response:
    """The script and the packed program; `commonage node join` brings both. For admins."""
    caller(request).need(Scope.ADMIN)
    found = _joining(request).kit()
    packed = base64.b64encode(found.bundle).decode()
    return answer(JoinKitOut(script=found.script, script_sha256=found.script_sha256, bundle=packed))


def script_route(joining: Joining) -> Route:
    """`GET /services/commonage/join`: the script itself, for whoever asks. No secret is in it."""

    async def script(_: Request) -> Response:
        return PlainTextResponse(joining.kit().script, headers={"Cache-Control": "no-cache"})

    return Route(f"{PORTAL_PATH}join", script, methods=["GET"])


def _joining(request: Request) -> Joining:
    joining = context(request).joining
    if joining is None:
        raise Conflict('no node can join here; set `site_address` (and `engine = "swarm"`) to let others join this one')
    return joining
