"""The page "Platform": admins list, create, change and delete resources. Managed ones are read-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.permissions import Permission
from commonage.portal.auth import HOME, Visitor
from commonage.portal.site import Site, form_text
from commonage.resources.editing import document_of, rows_of, table_of, texts_of
from commonage.resources.kinds import KINDS, kind_named

_FIELD = "field-"  # before the path of a field
_SPARE = 3  # empty lines at the end of a table


@dataclass(frozen=True, slots=True)
class ResourceForm:
    """One resource as text. `version` 0: it is new. The error "" is one of the whole form."""

    kind: str
    name: str
    version: int
    values: Mapping[str, str]
    managed_by: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)


def routes(site: Site) -> list[Route]:
    """GET platform, platform/edit?kind=&name=; POST platform/edit and platform/remove."""
    resources = site.control.resources

    async def page(request: Request, visitor: Visitor) -> Response:
        found = resources.all(visitor.principal)
        sources = site.control.git_sources.all(visitor.principal)
        groups = [(kind, [one for one in found if one.kind == kind.name]) for kind in KINDS.values()]
        values = {"section": "platform", "groups": groups, "ignored": resources.ignored, "sources": sources}
        return site.render(request, visitor, "platform.html", values)

    async def edit(request: Request, visitor: Visitor) -> Response:
        site.access(visitor).need(Permission.SEE_PLATFORM)
        kind, name = request.query_params.get("kind", ""), request.query_params.get("name", "")
        kind_named(kind)
        if not name:
            return show(request, visitor, ResourceForm(kind, "", 0, texts_of(kind, {})))
        found = resources.one(visitor.principal, kind, name)
        form = ResourceForm(kind, name, found.version, texts_of(kind, found.document), found.managed_by)
        return show(request, visitor, form)

    async def save(request: Request, visitor: Visitor) -> Response:
        site.access(visitor).need(Permission.MANAGE_PLATFORM)
        sent = await request.form()
        kind = kind_named(form_text(sent, "kind")).name
        texts = dict.fromkeys((row.path for row in rows_of(kind)), "")
        texts |= {name.removeprefix(_FIELD): form_text(sent, name) for name in sent if name.startswith(_FIELD)}
        name, version = form_text(sent, "name"), form_text(sent, "version")
        number = int(version) if version.isascii() and version.isdigit() and len(version) < 10 else 0
        try:
            document = document_of(kind, texts)
            await resources.put(visitor.principal, document, number, kind=kind, name=name)
        except CommonageError as error:
            errors = {_place(kind, error): messages.of_error(error)}
            return show(request, visitor, ResourceForm(kind, name, number, texts, errors=errors), error.status)
        return RedirectResponse(f"{HOME}platform#{kind}", status_code=303)

    async def remove(request: Request, visitor: Visitor) -> Response:
        sent = await request.form()
        kind, name, version = (form_text(sent, what) for what in ("kind", "name", "version"))
        number = int(version) if version.isascii() and version.isdigit() and len(version) < 10 else 0
        force = form_text(sent, "force") == "1"
        await resources.delete(visitor.principal, kind, name, number, force=force)
        return RedirectResponse(f"{HOME}platform#{kind}", status_code=303)

    def show(request: Request, visitor: Visitor, form: ResourceForm, status: int = 200) -> Response:
        rows = rows_of(form.kind)
        tables = {one.path: table_of(one, form.values, _SPARE) for one in rows if one.control == "table"}
        values: dict[str, Any] = {"section": "platform", "form": form, "tables": tables}
        values["sections"] = [
            (outer, list(some)) for outer, some in groupby(rows, lambda one: one.path.rpartition(".")[0])
        ]
        values["given"] = {path for path, text in form.values.items() if text} | {*form.errors}
        values["name_hint"] = KINDS[form.kind].form.model_fields["name"].description or ""
        values["may_change"] = site.access(visitor).may(Permission.MANAGE_PLATFORM) and not form.managed_by
        return site.render(request, visitor, "resource.html", values, status)

    return [
        Route("/platform", site.page(page), methods=["GET"]),
        Route("/platform/edit", site.page(edit), methods=["GET"]),
        Route("/platform/edit", site.page(save), methods=["POST"]),
        Route("/platform/remove", site.page(remove), methods=["POST"]),
    ]


def _place(kind: str, error: CommonageError) -> str:
    """The field of the form that an error is about; empty for the whole form."""
    field = (error.field or "") if isinstance(error, InvalidInput) else ""
    places = ["name", *(row.path for row in rows_of(kind))]
    return next((one for one in places if field == one or field.startswith(f"{one}.")), "")
