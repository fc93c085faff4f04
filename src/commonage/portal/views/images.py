"""Images page: environments and provenance of each image, and the nodes that have it. Live."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.control.control import Control
from commonage.domain.images import Image, environments_of
from commonage.domain.principals import Principal
from commonage.domain.workloads import Kind
from commonage.portal.auth import Visitor
from commonage.portal.site import Site


def routes(site: Site) -> list[Route]:
    """GET images and its live stream; POST images/TENANT/NAME/remove and images/TENANT/NAME/prepull."""
    view = _Images(site)
    return [
        Route("/images", site.page(view.page), methods=["GET"]),
        Route("/live/images", site.page(view.live), methods=["GET"]),
        Route("/images/{scope}/{name}/remove", site.page(view.remove), methods=["POST"]),
        Route("/images/{scope}/{name}/prepull", site.page(view.prepull), methods=["POST"]),
    ]


class _Images:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._control = site.control

    async def page(self, request: Request, visitor: Visitor) -> Response:
        values = gather(self._control, visitor.who)
        return self._site.render(request, visitor, "images.html", {"section": "nodes", **values})

    async def live(self, request: Request, visitor: Visitor) -> Response:
        async def gather_values() -> dict[str, Any]:
            return gather(self._control, visitor.who)

        return self._site.live(request, visitor, "parts/images.html", ["images"], gather_values)

    async def remove(self, request: Request, visitor: Visitor) -> Response:
        view, waiting = await self._control.images.remove(visitor.who, _name(request))
        held = f"; {len(waiting)} queued workloads are held" if waiting else ""
        return self._site.done(request, f"Removed {view.image.name}{held}", "images")

    async def prepull(self, request: Request, visitor: Visitor) -> Response:
        view = await self._control.images.prepull(visitor.who, _name(request), ())
        return self._site.done(request, f"Pulling {view.image.name} on {len(view.nodes)} nodes", "images")


def _name(request: Request) -> str:
    return f"{request.path_params['scope']}/{request.path_params['name']}"


def gather(control: Control, who: Principal) -> dict[str, Any]:
    """The images that `who` may see, each with its environments: (name, title, kind to launch)."""
    views = control.images.visible(who)
    return {"images": [{"view": view, "environments": _environments(view.image)} for view in views]}


def _environments(image: Image) -> list[tuple[str, str, Kind]]:
    return [
        (one.name, one.title, Kind.SESSION if Kind.SESSION in one.kinds else Kind.JOB) for one in environments_of(image)
    ]
