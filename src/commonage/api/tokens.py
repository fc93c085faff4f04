"""Route of tokens: new ones, from the hub."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.routing import Guarded, answer, body_of, caller, context, expiry, problems, read_json
from commonage.domain.errors import Forbidden, InvalidInput, Unavailable
from commonage.domain.principals import Principal, Scope
from commonage.domain.quantities import format_duration
from commonage.wire.platform import TokenIn, TokenOut

router = APIRouter(route_class=Guarded, tags=["tokens"])

_USUAL = (Scope.READ, Scope.SUBMIT)
_SLACK_S = 1  # the hub counts from when it is asked


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
    """It can never do more than the one it is asked with, nor last longer. It is shown this once."""
    at, who = context(request), caller(request)
    who.need(Scope.TOKENS)
    ask = await read_json(request, TokenIn, optional=True)
    user = _user(at.auth.is_own(who), who, ask.user)
    scopes = _scopes(who, ask)
    latest, identity = await expiry(request), at.control.identity
    left_s = None if latest is None else latest - at.control.clock.now()
    lasts_s = _lasts_s(ask.expires_s, left_s, at.control.settings.token_lifetime_s)
    made = await identity.mint_token(user, scopes, ask.note, lasts_s)
    if latest is not None and made.expires_at > latest:
        await identity.revoke_token(user, made.id)
        raise Unavailable("the hub was too slow to make a token that expires in time; try again")
    names = [scope.value for scope in scopes]
    return answer(TokenOut(token=made.text, user=user, scopes=names, expires_at=made.expires_at), 201)


def _user(is_own: bool, who: Principal, wanted: str | None) -> str:
    """Whose token it will be."""
    if wanted is None or wanted == who.name:
        if is_own:
            raise InvalidInput("the server itself has no tokens here; name a user", field="user")
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


def _lasts_s(asked_s: int | None, left_s: float | None, lifetime_s: int) -> int:
    """How long it will last: no longer than the caller's own token, nor than any may. Raises InvalidInput."""
    longest_s = lifetime_s if left_s is None else min(lifetime_s, int(left_s) - _SLACK_S)
    if longest_s < 1:
        raise Forbidden("the token this is asked with expires now, and none that it makes may last longer")
    if asked_s is None:
        return longest_s
    if asked_s > longest_s:
        why = "as tokens here last no longer" if longest_s == lifetime_s else "when the token it is asked with expires"
        raise InvalidInput(
            f"a token cannot last {format_duration(asked_s)}: at most {longest_s} seconds, {why}; ask for a shorter "
            "one, or leave `expires_s` out",
            field="expires_s",
        )
    return asked_s
