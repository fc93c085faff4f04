"""The page "Sites": sites elsewhere and their links. Admins invite a site, revoke its certificate, or remove it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.domain.errors import InvalidInput
from commonage.portal.auth import HOME, Visitor
from commonage.portal.labels import SITES
from commonage.portal.site import Site, form_text
from commonage.ports.joining import JoinToken
from commonage.ports.sites import SiteToken

VALIDITY = {3600: "1 hour", 86_400: "1 day", 604_800: "7 days"}
"""How long a token can be valid, in seconds."""


def routes(site: Site) -> list[Route]:
    """GET sites; POST sites with `name` and `for_s` to create a token, sites/NAME/revoke and sites/NAME/remove.

    POST sites/NAME/node-token creates a token with which nodes join that site.
    """
    sites, nodes = site.control.sites, site.control.node_admission

    async def page(request: Request, visitor: Visitor) -> Response:
        return await show(request, visitor)

    async def invite(request: Request, visitor: Visitor) -> Response:
        form = await request.form()
        name, for_s = form_text(form, "name"), form_text(form, "for_s")
        chosen = int(for_s) if for_s in {str(seconds) for seconds in VALIDITY} else min(VALIDITY)
        try:
            token = await sites.token(visitor.principal, name, chosen)
        except InvalidInput as error:
            return await show(request, visitor, name=name, error=messages.of_error(error))
        return await show(request, visitor, token=token)

    async def make_node_token(request: Request, visitor: Visitor) -> Response:
        name = request.path_params["name"]
        made = await nodes.token(visitor.principal, name, min(VALIDITY))
        return await show(request, visitor, node_token=(name, made))

    async def revoke(request: Request, visitor: Visitor) -> Response:
        await sites.revoke(visitor.principal, request.path_params["name"])
        return RedirectResponse(f"{HOME}sites", status_code=303)

    async def remove(request: Request, visitor: Visitor) -> Response:
        await sites.remove(visitor.principal, request.path_params["name"])
        return RedirectResponse(f"{HOME}sites", status_code=303)

    async def show(
        request: Request, visitor: Visitor, *, name: str = "", error: str = "", token: SiteToken | None = None,
        node_token: tuple[str, JoinToken] | None = None,
    ) -> Response:  # fmt: skip
        values = {
            "section": "nodes",
            "can_join": sites.sites is not None,
            "sites": await sites.all(visitor.principal),
            "signs": SITES,
            "validity": VALIDITY,
            "name": name,
            "error": error,
            "token": token,
            "node_token": node_token,
            "joining": nodes.joining.keys(),
        }
        return site.render(request, visitor, "sites.html", values, 422 if error else 200)

    return [
        Route("/sites", site.page(page), methods=["GET"]),
        Route("/sites", site.page(invite), methods=["POST"]),
        Route("/sites/{name}/node-token", site.page(make_node_token), methods=["POST"]),
        Route("/sites/{name}/revoke", site.page(revoke), methods=["POST"]),
        Route("/sites/{name}/remove", site.page(remove), methods=["POST"]),
    ]
