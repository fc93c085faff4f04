"""Routes of the registry of images: where it is, the tokens its clients ask for, throwing out what nobody needs.

`GET /registry/token` is the realm that the registry names to clients. They know one way to say who they are, a name and
a password; the password is a token of the hub's here. A problem is told in their words, too (`details`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime as dt
import json
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage import messages
from commonage.api import failures
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.control.control import Control
from commonage.control.settings import ControlSettings
from commonage.control.tenants.membership import tenants_of
from commonage.domain.errors import CommonageError, NotFound, Unauthenticated
from commonage.domain.images import scope_of
from commonage.domain.principals import Principal, Scope
from commonage.domain.registry import Rights, granted, parse_access, rights_of_member
from commonage.ports.registry import Registry
from commonage.wire.registry import CollectedOut, RegistryOut, RegistryTokenOut

router = APIRouter(route_class=Guarded, tags=["images"])
_open = APIRouter(tags=["images"])


@router.get(
    "/registry",
    summary="The site's registry of images",
    response_model=RegistryOut,
    responses=problems("registry-not-found"),
)
async def about(request: Request) -> Response:
    """Where it is, and the authority that its certificate is checked by."""
    caller(request).need(Scope.READ)
    found = _registry(request).about
    return answer(RegistryOut(address=found.address, certificate=found.certificate))


@router.post(
    "/registry/collect",
    summary="Throw out of the registry what nobody needs",
    response_model=CollectedOut,
    responses=problems("registry-not-found", "conflict", "engine-failure"),
)
async def collect(request: Request) -> Response:
    """Images that are old and not in the catalogue, and layers without an image. Nothing can be pushed meanwhile.

    It happens every day by itself. For admins.
    """
    caller(request).need(Scope.ADMIN)
    found = await _registry(request).collect(images_in_use(context(request).control))
    return answer(CollectedOut(images=list(found.images), freed_bytes=found.freed_bytes))


@_open.get(
    "/registry/token",
    summary="A token for the registry",
    response_model=RegistryTokenOut,
    responses=problems("registry-not-found", "invalid-input", "invalid-parameter"),
)
async def token(
    request: Request,
    scope: Annotated[
        list[str] | None,
        Query(description="What it is to allow: `repository:TENANT/NAME:pull,push`; as much is granted as may be."),
    ] = None,
    account: Annotated[str | None, Query(description="As clients send it; it is not looked at.")] = None,
    service: Annotated[str | None, Query(description="Likewise: there is one registry.")] = None,
) -> Response:
    """By name and password (`Authorization: Basic`), the password being a token of the hub's; or by such a token alone.

    Members pull and push what begins with their tenant's name, everybody pulls what begins with `public/`.
    """
    try:
        subject, rights = await _rights(request, context(request).registry)
        made = _registry(request).token(subject, granted(parse_access(scope or ()), rights))
    except CommonageError as error:
        return _refused(error)
    issued = dt.datetime.fromtimestamp(made.issued_at, tz=dt.UTC).isoformat(timespec="seconds")
    return answer(RegistryTokenOut(token=made.text, access_token=made.text, expires_in=made.lasts_s, issued_at=issued))


router.routes.extend(_open.routes)


def images_in_use(control: Control) -> set[str]:
    """The names of all images of the catalogue, and of those that were removed from it but that live work is in.

    What waits may still get them, and what runs be started anew on a node that does not have its image yet. One that
    another took the place of is no longer among them: the registry keeps for a while what was needed lately.
    """
    there = {one.environment.image for one in control.node_pool.environments() if one.environment.image}
    # An environment of the settings may have the name of one of these.
    there |= {one.reference for one in control.catalogue.images()}
    removed = (control.catalogue.removed(workload.spec.environment) for workload in control.live_state)
    return there | {one.reference for one in removed if one is not None}


def _refused(error: CommonageError) -> Response:
    """The problem, with the sentence where clients of registries look for it."""
    found = failures.of_error(error)
    document = {**json.loads(bytes(found.body)), "details": messages.of_error(error)}
    headers = {name: value for name, value in found.headers.items() if name != "content-length"}
    if found.status_code == 401:
        headers["www-authenticate"] = 'Basic realm="commonage"'
    return Response(json.dumps(document), found.status_code, headers, found.media_type)


async def _rights(request: Request, registry: Registry | None) -> tuple[str, Rights]:
    """Who asks, and what they may. Raises Unauthenticated, Forbidden, Unavailable."""
    header, at = request.headers.get("authorization"), context(request)
    user, password = _basic(header)
    if password is not None:
        if registry is not None and await asyncio.to_thread(registry.is_node, user, password):
            return user, Rights(pulls_all=True)
        header = f"token {password}"
    who = await at.identify(request, header)
    if password is not None and user != who.name:
        raise Unauthenticated(f"the token given as password is that of {who.name}, and not of {user[:60]!r}")
    return who.name, rights_of(who, at.control.settings)


def rights_of(who: Principal, settings: ControlSettings) -> Rights:
    """What this one may do in the registry."""
    if who.is_admin:
        return Rights(everything=True)
    scopes = [scope_of(tenant.name) for tenant in tenants_of(who.groups, settings)]
    return rights_of_member(scopes, reads=Scope.READ in who.scopes, writes=Scope.SUBMIT in who.scopes)


def _basic(header: str | None) -> tuple[str, str | None]:
    """Name and password of a Basic header; no password where it is of another kind. Raises Unauthenticated."""
    scheme, _, rest = (header or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return "", None
    try:
        user, colon, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        user = colon = password = ""
    if colon and not password:
        raise Unauthenticated("the password is a token of the hub's, and none was given; `commonage login` gets one")
    if not colon:
        raise Unauthenticated("the Authorization header is not of the form 'Basic', then NAME:TOKEN in base 64")
    return user, password


def _registry(request: Request) -> Registry:
    found = context(request).registry
    if found is None:
        raise NotFound(
            "there is no registry of images here; an admin sets `registry = true`", code="registry-not-found"
        )
    return found
