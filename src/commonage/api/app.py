"""The ASGI application: the API below its prefix, with the portal and further routes. Called by the server's bootstrap.

Mounts the routes, the limits and the error handlers, and completes the OpenAPI description.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, cast

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute, Mount, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commonage import __version__
from commonage.api import failures
from commonage.api.auth import Auth
from commonage.api.routes import (
    activity,
    classes,
    cron_jobs,
    environments,
    events,
    execs,
    files,
    images,
    installation,
    materials,
    nodes,
    offboarding,
    registry,
    resources,
    sites,
    tenants,
    usage,
    visits,
    workloads,
)
from commonage.api.routes.nodes import script_route
from commonage.api.routing import NO_SERVICES, Context, Services
from commonage.control.control import Control
from commonage.domain.errors import TooLarge
from commonage.domain.nodes import LOCAL_SITE
from commonage.wire.activity import ActivityIn, ExtendIn
from commonage.wire.classes import AskIn, ClassIn, ClassMessageIn, ConsentIn
from commonage.wire.cron_jobs import CronJobIn, TriggerIn
from commonage.wire.environments import EnvironmentBuildIn
from commonage.wire.files import FolderIn, MoveIn
from commonage.wire.hub import API_PATH, UPLOAD_PATH
from commonage.wire.images import ImageIn, ImageNameIn, PrepullIn
from commonage.wire.installation import TokenIn
from commonage.wire.materials import MaterialTokenIn, ResetIn
from commonage.wire.nodes import JoinTokenIn
from commonage.wire.offboarding import OffboardingIn, OffboardingPlanIn
from commonage.wire.reasons import Problem
from commonage.wire.resources import ApplyIn, GitSourceIn, PlanIn, ResourceIn
from commonage.wire.sites import SiteTokenIn
from commonage.wire.tenants import ReservationIn
from commonage.wire.visits import VisitorsIn
from commonage.wire.workloads import StopIn, SubmitIn

_NOUNS = (
    workloads, activity, cron_jobs, events, usage, execs, files, visits, nodes, sites, environments, images,
    registry, resources, tenants, classes, offboarding, installation, materials,
)  # fmt: skip
# FastAPI does not know the bodies that routes read themselves (`routing.read_json`).
_BODIES = (
    SubmitIn, StopIn, TokenIn, ReservationIn, ImageIn, ImageNameIn, PrepullIn, JoinTokenIn,
    CronJobIn, TriggerIn, ResourceIn, PlanIn, ApplyIn, GitSourceIn, SiteTokenIn, OffboardingPlanIn, OffboardingIn,
    VisitorsIn, ActivityIn, ExtendIn, FolderIn, MoveIn, ResetIn, MaterialTokenIn,
    ClassIn, ClassMessageIn, AskIn, ConsentIn, EnvironmentBuildIn,
)  # fmt: skip
_UNLIMITED = frozenset({API_PATH + environments.BUNDLES_PATH, API_PATH + files.CONTENT_PATH, UPLOAD_PATH})
_SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A hub token: `Authorization: Bearer TOKEN`, or `token TOKEN` as JupyterHub writes it.",
    }
}


def create_app(
    control: Control,
    auth: Auth,
    portal_router: Router | None = None,
    routes: Sequence[BaseRoute] = (),
    services: Services = NO_SERVICES,
) -> FastAPI:
    """The whole application. `portal_router` has the portal's pages, `routes` further ones such as `/metrics`.

    Call `end_streams(app)` before the server stops, because an open stream would keep it from stopping.
    """
    app = FastAPI(title="Commonage", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit, unlimited=_UNLIMITED)
    app.state.context = Context(control, auth, services.images)
    api = _api()
    api.state.context = app.state.context
    mount = Mount(API_PATH, app=api, name="api")
    # The API answers every path below the prefix, even one with a line break.
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    app.router.routes.append(mount)
    app.router.routes.extend(routes)
    if (joining := control.node_admission.joining.get(LOCAL_SITE)) is not None:
        app.router.routes.append(script_route(joining))
    if portal_router is not None:
        app.router.routes.extend(portal_router.routes)
    return app


def end_streams(app: FastAPI) -> None:
    """End all open streams of the application now; their clients reconnect to the next server and resume."""
    cast(Context, app.state.context).streams.close()


def describe() -> dict[str, Any]:
    return _api().openapi()


def _api() -> FastAPI:
    """The API alone, at the root. Without Swagger's pages, which load their scripts from another site."""
    api = FastAPI(
        title="Commonage",
        version=__version__,
        description="Sessions, jobs and services with a share of a GPU. Errors are problem documents (RFC 9457).",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        servers=[{"url": API_PATH}],
        root_path_in_servers=False,
    )
    for noun in _NOUNS:
        # Added directly, because an included router would slow down every request.
        api.router.routes.extend(noun.router.routes)
    failures.install(api)
    plain = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            _complete(plain())
        return plain()

    api.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    return api


def _complete(schema: dict[str, Any]) -> None:
    """Add to FastAPI's description: bodies, problem documents, and authentication."""
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    _, definitions = models_json_schema(
        [*((model, "validation") for model in _BODIES), (Problem, "serialization")],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(definitions["$defs"])
    # FastAPI's own validation errors do not occur: routes declare problem documents instead.
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for methods in schema["paths"].values():
        for operation in methods.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    schema["components"]["securitySchemes"] = _SECURITY_SCHEMES
    schema["security"] = [{"bearer": []}]


MAX_BODY_BYTES = 1024 * 1024


class BodyLimit:
    """Counts the bytes of a body. Paths in `unlimited` enforce their own limit."""

    def __init__(self, app: ASGIApp, unlimited: Collection[str] = ()) -> None:
        self._app = app
        self._unlimited = unlimited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._unlimited:
            await self._app(scope, receive, send)
            return
        announced = _announced(scope)
        size = 0

        async def bounded() -> Message:
            nonlocal size
            # Before the client is asked to send the body.
            if announced > MAX_BODY_BYTES:
                raise _too_large()
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise _too_large()
            return message

        await self._app(scope, bounded, send)


def _announced(scope: Scope) -> int:
    text = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(text) if text.isdigit() and len(text) < 20 else MAX_BODY_BYTES + 1


def _too_large() -> TooLarge:
    return TooLarge(
        "Body too large: at most 1 MiB is allowed. Upload files as a bundle (`commonage run --files`), "
        "and keep data in a volume."
    )
