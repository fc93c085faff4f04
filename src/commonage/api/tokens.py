"""Route of tokens: new ones, from the hub."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.routing import Guarded, answer, body_of, caller, door, problems, read_json
from commonage.domain.errors import Forbidden, InvalidInput
from commonage.domain.principals import Principal, Scope
from commonage.wire.platform import TokenIn, TokenOut

router = APIRouter(route_class=Guarded, tags=["tokens"])

_USUAL = (Scope.READ, Scope.SUBMIT)


@router.post(
    "/tokens",
    status_code=201,
    summary="Make a token",
    response_model=TokenOut,
    responses=problems(
        "not-admin", "forbidden", "user-not-found", "invalid-input", "unknown-field", "invalid-json",
        "invalid-encoding", "unsupported-media-type", "too-large",
    ),
    openapi_extra=body_of(TokenIn, {"note": "nightly runs", "expires_s": 2592000}, required=False),
)  # fmt: skip
async def make(request: Request) -> Response:
    """It can never do more than the one it is asked with. It is shown this once."""
    at, who = door(request), caller(request)
    ask = await read_json(request, TokenIn, optional=True)
    user = _user(at.auth.is_spawner(who), who, ask.user)
    scopes = _scopes(who, ask)
    token = await at.control.identity.mint_token(user, scopes, ask.note, ask.expires_s)
    return answer(TokenOut(token=token, user=user, scopes=[scope.value for scope in scopes]), 201)


def _user(is_spawner: bool, who: Principal, wanted: str | None) -> str:
    """Whose token it will be."""
    if wanted is None or wanted == who.name:
        if is_spawner:
            raise InvalidInput("the hub itself has no tokens here; name a user", field="user")
        return who.name
    if not who.is_admin:
        raise Forbidden("only admins may make tokens for somebody else", code="not-admin")
    return wanted


def _scopes(who: Principal, ask: TokenIn) -> Sequence[Scope]:
    """What it will allow: at most what the caller's own token allows."""
    if ask.scopes is None:
        scopes = [scope for scope in _USUAL if scope in who.scopes or who.is_admin]
    else:
        scopes = list(dict.fromkeys(Scope(name) for name in ask.scopes))
        for scope in scopes:
            who.need(scope)
    if not scopes:
        raise Forbidden("this token has no scope of Commonage that a new one could have", code="scope-missing")
    return scopes
