"""The page "Environments": their contents, and their builds. Managers of a tenant build and remove theirs."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.control.access import access_of
from commonage.control.catalogue.builds import NewBuild
from commonage.control.control import Control
from commonage.domain.builds import BUILDER, BuildOrder, BuildSource, SourceKind
from commonage.domain.errors import InvalidInput, TooLarge
from commonage.domain.images import scope_of
from commonage.domain.permissions import Permission
from commonage.portal.auth import HOME, Visitor
from commonage.portal.site import Site, form_text
from commonage.ports.store import Filter

_BUILDS = 5
SOURCES = {
    SourceKind.REQUIREMENTS: "requirements.txt",
    SourceKind.ENVIRONMENT: "environment.yml",
    SourceKind.PYPROJECT: "pyproject.toml",
    SourceKind.CONTAINERFILE: "Containerfile",
    SourceKind.GIT: "Git repository",
    SourceKind.IMAGE: "Image",
}
_FIELDS = ("tenant", "name", "source", "text", "url", "ref", "title", "description")


def routes(site: Site) -> list[Route]:
    """GET environments and its live stream; POST environments with the fields of a build.

    POST environments/TENANT/NAME/remove.
    """
    control = site.control

    async def build(request: Request, visitor: Visitor) -> Response:
        form = await request.form()
        values = {name: form_text(form, name) for name in _FIELDS}
        try:
            made = await control.builds.submit(visitor.principal, _parse(values))
        except (InvalidInput, TooLarge) as error:
            shown = await _gather(control, request, visitor)
            page = {"section": "nodes", **shown, "form": values, "error": messages.of_error(error)}
            return site.render(request, visitor, "environments.html", page, 422)
        return RedirectResponse(f"{HOME}workloads/{made.id}", status_code=303)

    async def remove(request: Request, visitor: Visitor) -> Response:
        name = f"{request.path_params['scope']}/{request.path_params['name']}"
        await control.builds.remove(visitor.principal, name)
        return site.done(request, f"Removed {name}", "environments")

    return [
        *site.live_page("environments", "nodes", ["environments"], partial(_gather, control)),
        Route("/environments", site.page(build), methods=["POST"]),
        Route("/environments/{scope}/{name}/remove", site.page(remove), methods=["POST"]),
    ]


def _parse(values: dict[str, str]) -> NewBuild:
    if values["source"] not in list(SourceKind):
        raise InvalidInput("Choose what the environment is built from.", field="source", code="invalid-build")
    kind = SourceKind(values["source"])
    text = values["text"].replace("\r\n", "\n") if kind.has_text else ""
    source = BuildSource(kind, text, "" if kind.has_text else values["url"].strip(), values["ref"].strip())
    name = f"{values['tenant']}/{values['name'].strip()}"
    return NewBuild(BuildOrder(name, source, values["title"].strip()[:128], values["description"].strip()[:500]))


async def _gather(control: Control, _: Request, visitor: Visitor) -> dict[str, Any]:
    """The visible environments, the newest builds, and the tenants whose environments the visitor may build."""
    access = access_of(visitor.principal, control.settings)
    tenants = access.tenants(Permission.MANAGE_ENVIRONMENTS) if BUILDER in control.catalogue else ()
    page = await control.queries.workloads(visitor.principal, Filter(environment=BUILDER), limit=_BUILDS)
    views = control.environments.views(visitor.principal)
    return {
        "environments": [
            {
                "view": view,
                "mine": bool(view.environment.built_by)
                and access.may(Permission.MANAGE_ENVIRONMENTS, view.environment.tenant),
            }
            for view in views
        ],
        "builds": page.items,
        "scopes": [scope_of(one.name) for one in tenants],
        "sources": SOURCES,
        "form": dict.fromkeys(_FIELDS, ""),
        "error": "",
    }
