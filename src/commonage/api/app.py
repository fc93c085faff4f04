"""The application: the API under its prefix, beside whatever pages and endpoints the server brings along.

Called once by the server's bootstrap. Wires routes, guard and failures; the routes stand in a file for each noun.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from fastapi import FastAPI
from starlette.routing import BaseRoute, Mount, Router

from commonage import __version__
from commonage.api import (
    bundles,
    environments,
    events,
    execs,
    failures,
    health,
    images,
    info,
    joining,
    launch,
    nodes,
    registry,
    reservations,
    tenants,
    tokens,
    usage,
    volumes,
    workload_parts,
    workloads,
)
from commonage.api import node_pools as node_pools
from commonage.api.auth import Auth
from commonage.api.body_limit import BodyLimit
from commonage.api.openapi import complete
from commonage.api.routing import Context
from commonage.control.control import Control
from commonage.ports.joining import Joining
from commonage.ports.registry import Registry
from commonage.wire.hub import API_PATH

_ROUTERS = (
    workloads, workload_parts, execs, nodes, joining, node_pools, environments, images, registry, volumes, tenants,
    reservations, events, usage, info, launch, bundles, tokens, health,
)  # fmt: skip


def create_app(
    control: Control,
    auth: Auth,
    portal_router: Router | None = None,
    routes: Sequence[BaseRoute] = (),
    nodes: Joining | None = None,
    images: Registry | None = None,
) -> FastAPI:
    """The whole application. `portal_router` has the portal's pages, `routes` what else there is (`/metrics`).

    `nodes` is how others join, `images` the registry, where there is one.

    Before the server stops, call `end_streams(app)`: a stream that is open would keep it from stopping.
    """
    app = FastAPI(title="Commonage", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit, unlimited=frozenset({API_PATH + bundles.PATH}))
    app.state.context = Context(control, auth, nodes, images)
    api = _api()
    api.state.context = app.state.context
    mount = Mount(API_PATH, app=api, name="api")
    # Whatever comes behind the prefix is the API's to answer, also a path with a line break in it.
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    app.router.routes.append(mount)
    app.router.routes.extend(routes)
    if nodes is not None:
        app.router.routes.append(joining.script_route(nodes))
    if portal_router is not None:
        app.router.routes.extend(portal_router.routes)
    return app


def end_streams(app: FastAPI) -> None:
    """End all streams of the application now; their clients come back to the next server and resume."""
    cast(Context, app.state.context).streams.close()


def describe() -> dict[str, Any]:
    """The API's OpenAPI description, without a control plane behind it."""
    return _api().openapi()


def _api() -> FastAPI:
    """The API alone, at the root. Swagger's pages are left out: they would fetch their scripts from elsewhere."""
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
    for module in _ROUTERS:
        # As they are: nothing is to be added to them, and an included router would be one more to ask each time.
        api.router.routes.extend(module.router.routes)
    failures.install(api)
    complete(api)
    return api
