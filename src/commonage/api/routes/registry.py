"""Routes of the image registry: its address, tokens for its clients, and the deletion of unused images.

The registry sends its clients to `GET /registry/token`. They authenticate with a user name and a password, which is a
hub token here. Problem documents also have the field `details`, which these clients show.
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
from commonage.api.fill import fill
from commonage.api.routing import Guarded, answer, asks, caller, context, problems
from commonage.control.access import access_of
from commonage.control.control import Control
from commonage.control.settings import ControlSettings
from commonage.domain.errors import CommonageError, NotFound, Unauthenticated
from commonage.domain.images import Rights, granted, parse_access, rights_in, scope_of
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.ports.registry import Registry
from commonage.wire.images import CollectedOut, RegistryOut, RegistryTokenOut

router = APIRouter(route_class=Guarded, tags=["images"])
_public = APIRouter(tags=["images"])


@router.get("/registry", summary="Show the image registry", responses=problems("registry-not-found"))
@asks(Permission.SEE_TENANT)
async def about(request: Request) -> RegistryOut:
    """The address of the site's image registry, and the certificate authority that verifies it."""
    caller(request)
    return fill(RegistryOut, _registry(request).about)


@router.post(
    "/registry/collect",
    summary="Delete unused images from the registry",
    responses=problems("registry-not-found", "conflict", "engine-failure"),
)
@asks(Permission.MANAGE_PLATFORM)
async def collect(request: Request) -> CollectedOut:
    """Delete old images that are not in the catalogue, and layers without an image. For admins.

    Pushes are refused meanwhile. This also happens automatically every day.
    """
    caller(request)
    found = await _registry(request).collect(images_in_use(context(request).control))
    return fill(CollectedOut, found)


@_public.get(
    "/registry/token",
    summary="Get a token for the registry",
    response_model=RegistryTokenOut,
    responses=problems("registry-not-found", "invalid-input", "invalid-parameter"),
)
@asks(None)
async def token(
    request: Request,
    scope: Annotated[
        list[str] | None,
        Query(description="Requested access: `repository:TENANT/NAME:pull,push`. The token grants the allowed part."),
    ] = None,
    account: Annotated[str | None, Query(description="Sent by clients; ignored.")] = None,
    service: Annotated[str | None, Query(description="Sent by clients; ignored.")] = None,
) -> Response:
    """Authenticate with `Authorization: Basic`, the password being a hub token, or with the hub token alone.

    Members of a tenant may pull and push images below the tenant's name; everyone may pull images below `public/`.
    """
    try:
        subject, rights = await _rights(request, context(request).registry)
        made = _registry(request).token(subject, granted(parse_access(scope or ()), rights))
    except CommonageError as error:
        return _refused(error)
    issued = dt.datetime.fromtimestamp(made.issued_at, tz=dt.UTC).isoformat(timespec="seconds")
    return answer(RegistryTokenOut(token=made.text, access_token=made.text, expires_in=made.lasts_s, issued_at=issued))


router.routes.extend(_public.routes)


def images_in_use(control: Control) -> set[str]:
    """References of all images of the catalogue, and of removed images that live workloads use.

    A queued workload may still need its image, and a requeued one may start on a node that does not have it yet.
    Replaced images are not included: the registry keeps images that were used recently.
    """
    used = {one.environment.image for one in control.environments.views() if one.environment.image}
    # An environment of the settings may have the name of one of these.
    used |= {one.reference for one in control.catalogue.images()}
    removed = (control.catalogue.removed(workload.spec.environment) for workload in control.live_state)
    return used | {one.reference for one in removed if one is not None}


def _refused(error: CommonageError) -> Response:
    """The problem document, with its text also in `details`, which registry clients show."""
    found = failures.of_error(error)
    document = {**json.loads(bytes(found.body)), "details": messages.of_error(error)}
    headers = {name: value for name, value in found.headers.items() if name != "content-length"}
    if found.status_code == 401:
        headers["www-authenticate"] = 'Basic realm="commonage"'
    return Response(json.dumps(document), found.status_code, headers, found.media_type)


async def _rights(request: Request, registry: Registry | None) -> tuple[str, Rights]:
    """The caller's name and rights. Raises Unauthenticated, Forbidden, Unavailable."""
    header, api = request.headers.get("authorization"), context(request)
    user, password = _basic(header)
    if password is not None:
        if registry is not None and await asyncio.to_thread(registry.is_node, user, password):
            return user, Rights(pulls_all=True)
        header = f"token {password}"
    principal = await api.identify(request, header)
    if password is not None and user != principal.name:
        raise Unauthenticated(f"the password is a token of {principal.name}, not of {user[:60]!r}")
    return principal.name, _rights_of(principal, api.control.settings)


def _rights_of(principal: Principal, settings: ControlSettings) -> Rights:
    access = access_of(principal, settings)
    if access.may(Permission.PUBLISH_IMAGES):
        return Rights(everything=True)
    read = [scope_of(one.name) for one in access.tenants(Permission.SEE_TENANT)]
    written = [scope_of(one.name) for one in access.tenants(Permission.SUBMIT)]
    return rights_in(read if principal.holds(Scope.READ) else None, written if principal.holds(Scope.SUBMIT) else ())


def _basic(header: str | None) -> tuple[str, str | None]:
    """Name and password of a Basic header; password None for another scheme. Raises Unauthenticated."""
    scheme, _, rest = (header or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return "", None
    try:
        user, colon, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        user = colon = password = ""
    if colon and not password:
        raise Unauthenticated("the password is missing: use a hub token, which `commonage login` gets")
    if not colon:
        raise Unauthenticated("the Authorization header must be 'Basic ' and NAME:TOKEN in base64")
    return user, password


def _registry(request: Request) -> Registry:
    found = context(request).registry
    if found is None:
        raise NotFound(
            "this installation has no image registry; an admin can set `registry = true`", code="registry-not-found"
        )
    return found
