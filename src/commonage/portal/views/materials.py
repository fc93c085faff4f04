"""Materials: the list with sync and the visitor's copies, and the page of one with its credentials."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commonage.portal.auth import HOME, Visitor
from commonage.portal.labels import MATERIAL_SIGNS
from commonage.portal.site import Site, form_text
from commonage.wire.hub import API_PATH

_LISTED = 50


def routes(site: Site) -> list[Route]:
    """GET materials and materials/NAME; POST materials/NAME/sync, reset, token."""
    materials = site.control.materials

    async def page(request: Request, visitor: Visitor) -> Response:
        found = await materials.all(visitor.principal)
        values = {"section": "materials", "materials": found, "signs": MATERIAL_SIGNS, "listed": _LISTED}
        return site.render(request, visitor, "materials.html", values)

    async def one(request: Request, visitor: Visitor) -> Response:
        name = request.path_params["name"]
        access = await materials.access(visitor.principal, name)
        values = {
            "section": "materials",
            "one": await materials.one(visitor.principal, name),
            "access_to": access,
            "webhook": f"{API_PATH}/materials/{name}/webhook",
        }
        return site.render(request, visitor, "material.html", values)

    async def sync(request: Request, visitor: Visitor) -> Response:
        found = await materials.sync_now(visitor.principal, request.path_params["name"])
        return _to(found.volume.name)

    async def reset(request: Request, visitor: Visitor) -> Response:
        file = form_text(await request.form(), "file")
        found = await materials.reset(visitor.principal, request.path_params["name"], [file] if file else [])
        return _to(found.volume.name)

    async def token(request: Request, visitor: Visitor) -> Response:
        name, sent = request.path_params["name"], await request.form()
        await materials.set_token(visitor.principal, name, form_text(sent, "user"), form_text(sent, "token").strip())
        return RedirectResponse(f"{HOME}materials/{quote(name)}", status_code=303)

    return [
        Route("/materials", site.page(page), methods=["GET"]),
        Route("/materials/{name}", site.page(one), methods=["GET"]),
        Route("/materials/{name}/sync", site.page(sync), methods=["POST"]),
        Route("/materials/{name}/reset", site.page(reset), methods=["POST"]),
        Route("/materials/{name}/token", site.page(token), methods=["POST"]),
    ]


def _to(name: str) -> Response:
    return RedirectResponse(f"{HOME}materials#{quote(name)}", status_code=303)
