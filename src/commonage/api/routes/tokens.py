"""Route of tokens: creates hub tokens."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.routing import BODY, Guarded, answer, body_of, caller, context, expiry, problems, read_json
from commonage.domain.errors import Forbidden, InvalidInput, Unavailable
from commonage.domain.principals import Principal, Scope
from commonage.domain.requests import format_duration
from commonage.wire.installation import TokenIn, TokenOut

router = APIRouter(route_class=Guarded, tags=["tokens"])

_DEFAULT_SCOPES = (Scope.READ, Scope.SUBMIT)
_SLACK_S = 1  # the hub counts from the arrival of its request


@router.post(
    "/tokens",
    status_code=201,
    summary="Create a token",
    response_model=TokenOut,
    responses=problems(*BODY, "not-admin", "forbidden", "user-not-found"),
    openapi_extra=body_of(TokenIn, {"note": "nightly runs", "expires_s": 2592000}, required=False),
)
async def make(request: Request) -> Response:
    """Create a token whose scopes and lifetime are within those of the token of the request. It is shown only once."""
    api, principal = context(request), caller(request)
    principal.need(Scope.TOKENS)
    body = await read_json(request, TokenIn, optional=True)
    user = _user(api.auth.is_own(principal), principal, body.user)
    scopes = _scopes(principal, body)
    latest, identity = await expiry(request), api.control.identity
    left_s = None if latest is None else latest - api.control.clock.now()
    lasts_s = _lasts_s(body.expires_s, left_s, api.control.settings.token_lifetime_s)
    made = await identity.mint_token(user, scopes, body.note, lasts_s)
    if latest is not None and made.expires_at > latest:
        await identity.revoke_token(user, made.id)
        raise Unavailable("the hub was too slow to create a token that expires in time; try again")
    names = [scope.value for scope in scopes]
    return answer(TokenOut(token=made.text, user=user, scopes=names, expires_at=made.expires_at), 201)


def _user(is_own: bool, principal: Principal, wanted: str | None) -> str:
    """The user of the new token."""
    if wanted is None or wanted == principal.name:
        if is_own:
            raise InvalidInput("the server itself cannot have a token; set `user`", field="user")
        return principal.name
    if not principal.is_admin:
        raise Forbidden("only admins may create tokens for another user", code="not-admin")
    return wanted


def _scopes(principal: Principal, body: TokenIn) -> Sequence[Scope]:
    """The scopes of the new token: at most those of the caller's."""
    if body.scopes is None:
        scopes = [scope for scope in _DEFAULT_SCOPES if scope in principal.scopes or principal.is_admin]
    else:
        scopes = list(dict.fromkeys(Scope(name) for name in body.scopes))
        for scope in scopes:
            principal.need(scope)
    if not scopes:
        raise Forbidden("your token has no Commonage scope that a new token could have", code="scope-missing")
    return scopes


def _lasts_s(asked_s: int | None, left_s: float | None, lifetime_s: int) -> int:
    """The lifetime of the new token: at most `lifetime_s`, and no longer than the caller's. Raises InvalidInput."""
    longest_s = lifetime_s if left_s is None else min(lifetime_s, int(left_s) - _SLACK_S)
    if longest_s < 1:
        raise Forbidden("the token of this request expires now, and a token created with it may not last longer")
    if asked_s is None:
        return longest_s
    if asked_s > longest_s:
        limit = "`token_lifetime`" if longest_s == lifetime_s else "the lifetime of the token of this request"
        raise InvalidInput(
            f"a token cannot last {format_duration(asked_s)}: the limit is {longest_s} seconds, {limit}; request a "
            "shorter lifetime, or omit `expires_s`",
            field="expires_s",
        )
    return asked_s
