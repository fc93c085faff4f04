"""Routes of the installation: its health, its properties, the caller's identity, and hub tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage import __version__
from commonage.api.fill import reason
from commonage.api.routing import (
    BODY,
    Guarded,
    access_for,
    answer,
    asks,
    body_of,
    caller,
    context,
    expiry,
    problems,
    read_json,
)
from commonage.control.access import Access
from commonage.domain.errors import Forbidden, InvalidInput, Unavailable
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.requests import format_duration
from commonage.domain.workloads import State
from commonage.wire.installation import HealthOut, InfoOut, TokenIn, TokenOut

router = APIRouter(route_class=Guarded)


_public = APIRouter(tags=["installation"])


@router.get("/info", tags=["installation"], summary="Show the installation and your identity", responses=problems())
@asks(None)
async def info(request: Request) -> InfoOut:
    """Properties of the installation, and your user name and scopes. Any valid token is enough."""
    control, principal, access = context(request).control, caller(request), access_for(request)
    capabilities = control.node_views.capabilities(access)
    return InfoOut(
        name=control.settings.name,
        version=__version__,
        user=principal.name,
        admin=access.may(Permission.MANAGE_PLATFORM),
        platform_roles=sorted(role.value for role in access.platform),
        scopes=sorted(scope.value for scope in principal.scopes),
        token_expires_at=await expiry(request),
        simulated_gpus=control.live_state.simulated_gpus,
        engines=[one.name for one in capabilities],
        counts=by_state(control.queries.live_counts()),
        queue_length=control.queries.queue_length(),
        notes=[reason(note) for one in capabilities for note in one.notes],
    )


@_public.get(
    "/health",
    summary="Check the health of the control plane",
    response_model=HealthOut,
    responses={503: {"model": HealthOut, "description": "A control loop is stuck."}},
    openapi_extra={"security": []},
)
@asks(None)
async def health(request: Request) -> Response:
    """For supervisors and load balancers: 200 while all control loops work, 503 if one is stuck."""
    loops = context(request).control.health()
    stuck = [one.name for one in loops if one.stuck]
    ages = {one.name: None if one.age_s is None else round(one.age_s, 1) for one in loops}
    found = HealthOut(status="stuck" if stuck else "ok", version=__version__, since_iteration_s=ages, stuck=stuck)
    return answer(found, 503 if stuck else 200)


router.routes.extend(_public.routes)


def by_state(counts: Mapping[State, int]) -> dict[str, int]:
    return {state.value: number for state, number in counts.items()}


_DEFAULT_SCOPES = (Scope.READ, Scope.SUBMIT)
_SLACK_S = 1  # the hub counts from the arrival of its request


@router.post(
    "/tokens",
    tags=["tokens"],
    status_code=201,
    summary="Create a token",
    responses=problems(*BODY, "not-admin", "forbidden", "user-not-found"),
    openapi_extra=body_of(TokenIn, {"note": "nightly runs", "expires_s": 2592000}, required=False),
)
@asks(Permission.ISSUE_TOKENS)
async def make(request: Request) -> TokenOut:
    """Create a token whose scopes and lifetime are within those of the token of the request. It is shown only once."""
    api, principal = context(request), caller(request)
    body = await read_json(request, TokenIn, optional=True)
    user = _user(api.auth.is_own(principal), access_for(request), body.user)
    scopes = _scopes(principal, body)
    latest, identity = await expiry(request), api.control.identity
    left_s = None if latest is None else latest - api.control.clock.now()
    lasts_s = _lasts_s(body.expires_s, left_s, api.control.settings.token_lifetime_s)
    made = await identity.mint_token(user, scopes, body.note, lasts_s)
    if latest is not None and made.expires_at > latest:
        await identity.revoke_token(user, made.id)
        raise Unavailable("the hub was too slow to create a token that expires in time; try again")
    names = [scope.value for scope in scopes]
    return TokenOut(token=made.text, user=user, scopes=names, expires_at=made.expires_at)


def _user(is_own: bool, access: Access, wanted: str | None) -> str:
    principal = access.principal
    if wanted is None or wanted == principal.name:
        if is_own:
            raise InvalidInput("the server itself cannot have a token; set `user`", field="user")
        return principal.name
    if not access.may(Permission.ISSUE_TOKENS):
        raise Forbidden("only admins may create tokens for another user", code="not-admin")
    return wanted


def _scopes(principal: Principal, body: TokenIn) -> Sequence[Scope]:
    if body.scopes is None:
        scopes = [scope for scope in _DEFAULT_SCOPES if principal.holds(scope)]
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
