"""All routes of the portal. The server's bootstrap includes this router after the API's, because its last route answers
every unknown path below the portal's with an error page.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.control.control import Control
from commonage.domain.errors import Forbidden, NotFound
from commonage.portal.auth import HOME, PortalAuth, Visitor
from commonage.portal.site import Site, continue_at
from commonage.portal.static_files import Docs
from commonage.portal.views import (
    classes,
    cron_jobs,
    data,
    environments,
    launch,
    materials,
    nodes,
    offboarding,
    overview,
    platform,
    reservations,
    services,
    sites,
    usage,
    workload,
    workloads,
)
from commonage.wire.hub import CALLBACK_PATH, REFUSED_PATH, SIGN_IN_PATH

_ANY = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def create_router(control: Control, auth: PortalAuth) -> APIRouter:
    """All pages, below `/services/commonage/`."""
    site = Site(control, auth)
    pages = [
        page
        for view in (
            overview,
            launch,
            workloads,
            workload,
            services,
            cron_jobs,
            data,
            materials,
            classes,
            nodes,
            environments,
            reservations,
            usage,
            platform,
            offboarding,
            sites,
        )
        for page in view.routes(site)
    ]
    router = APIRouter(include_in_schema=False)
    for route in [*pages, *_common_routes(site)]:
        methods = sorted(route.methods or {"GET"})
        router.add_route(HOME.rstrip("/") + route.path, route.endpoint, methods=methods, include_in_schema=False)
    return router


def _common_routes(site: Site) -> list[Route]:
    """Sign-in and sign-out, static files, the documentation, and unknown addresses."""
    docs = Docs()

    async def callback(request: Request) -> Response:
        return await site.auth.callback(request)

    async def sign_in(request: Request) -> Response:
        return site.auth.to_sign_in(request, request.query_params.get("next", HOME))

    async def sign_out(request: Request, visitor: Visitor) -> Response:
        return site.auth.forget(continue_at("/hub/logout"))

    async def refused(request: Request) -> Response:
        path = request.headers.get("x-replaced-path", "")[:200]  # the original path, from the proxy
        address = f"enter this site's name and then {path}" if path.startswith("/") else "enter its address"
        raise Forbidden(
            "The request came from the page of a session, a script or a frame, which may act for another user. "
            f"To open this page yourself, {address}.",
            code="not-opened-by-a-person",
        )

    async def unknown(request: Request, visitor: Visitor) -> Response:
        raise NotFound(f"Page not found: {request.url.path}.", code="page-not-found")

    return [
        Route(CALLBACK_PATH.removeprefix(HOME.rstrip("/")), site.open(callback), methods=["GET"]),
        Route(SIGN_IN_PATH.removeprefix(HOME.rstrip("/")), site.open(sign_in), methods=["GET"]),
        Route("/sign-out", site.page(sign_out), methods=["POST"]),
        Route("/static/{name:path}", site.assets.serve, methods=["GET"]),
        Route("/docs", site.open(docs.serve), methods=["GET"]),
        Route("/docs/{path:path}", site.open(docs.serve), methods=["GET"]),
        Route(REFUSED_PATH.removeprefix(HOME.rstrip("/")), site.open(refused), methods=_ANY),
        Route("/{path:path}", site.page(unknown), methods=["GET"]),
    ]
