"""Shared by all pages: the visitor, error pages, response headers. Used by all view files.

A view is `async (request, visitor) -> Response`; `Site.page` makes an endpoint of it.
"""

from __future__ import annotations

import html
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.control.access import Access, access_of
from commonage.control.control import Control
from commonage.control.request_limits import Connection
from commonage.domain import errors
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.portal.auth import HOME, PortalAuth, SignInNeeded, Visitor
from commonage.portal.live import LongResponse, Parts, only_changed, updates
from commonage.portal.static_files import Assets
from commonage.portal.templating import make_templates

log = logging.getLogger(__name__)
_MOST_FIELDS = 30_000  # of one form: a resource may have a list of ten thousand users

Endpoint = Callable[[Request], Awaitable[Response]]
View = Callable[[Request, Visitor], Awaitable[Response]]
Gather = Callable[[Request, Visitor], Awaitable[Mapping[str, Any]]]

_CSP = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TITLES = {
    401: "Not signed in",
    403: "Permission denied",
    404: "Not found",
    409: "Conflict",
    413: "Request too large",
    422: "Invalid input",
    429: "Too many requests",
    500: "Internal error",
    503: "Service unavailable",
}
_INTERNAL_ERROR = (
    "The server failed to make this page. The error is in the server's log. Try again, or open another page."
)


class Site:
    """Control, sign-in and templates for the views; one for each process."""

    def __init__(self, control: Control, auth: PortalAuth) -> None:
        self.control = control
        self.auth = auth
        self.assets = Assets()
        self._templates = make_templates(self.assets, control.settings, control.meetings)

    def page(self, view: View) -> Endpoint:
        """An endpoint that signs in, guards against forged changes, and shows errors as pages."""

        async def endpoint(request: Request) -> Response:
            visitor = None
            try:
                found = await self.auth.visitor(request)
                self.control.requests.take(found.principal.name)
                if request.method in {"GET", "HEAD"}:
                    self.auth.guard_reading(request, found)
                else:
                    self.auth.check_origin(request)  # before any of the request's content is read
                    given = request.headers.get("x-csrf-token", "")
                    if not given and request.method != "PATCH":  # PATCH sends a file of any size, and no form
                        given = form_text(await _form(request), "csrf")
                    self.auth.check_form(found, given)
                visitor = found  # a page for a user who was refused above must not hold their token
                response = await view(request, visitor)
            except SignInNeeded as needed:
                response = self._sign_in(request, needed)
            except errors.CommonageError as error:
                response = self.error(request, visitor, error)
            except Exception:  # an unexpected error must still give a page with a way out; the error is logged
                log.exception("page failed: %s %s", request.method, request.url.path)
                response = self.error(request, visitor, errors.CommonageError(_INTERNAL_ERROR))
            return _guarded(response)

        return endpoint

    def open(self, view: Endpoint) -> Endpoint:

        async def endpoint(request: Request) -> Response:
            try:
                response = await view(request)
            except errors.CommonageError as error:
                response = self.error(request, None, error)
            return _guarded(response)

        return endpoint

    def render(
        self, request: Request, visitor: Visitor | None, template: str, values: Mapping[str, Any], status: int = 200
    ) -> HTMLResponse:
        text = self._templates.get_template(template).render(
            home=HOME,
            site_name=self.control.settings.name,
            visitor=visitor,
            may=self._may(visitor),
            has_materials=visitor is not None and self.control.materials.any_for(visitor.principal),
            access=None if visitor is None else self.access(visitor),
            csrf=visitor.csrf if visitor else "",
            here=request.url.path,
            origin_warning=self.control.settings.origin_warning,
            prices=self.control.settings.prices,
            class_notices=() if visitor is None else self.control.classes.attended(visitor.principal),
            has_classes=visitor is not None and self.control.classes.concern(visitor.principal),
            **values,
        )
        return HTMLResponse(text, status_code=status)

    def access(self, visitor: Visitor) -> Access:
        return access_of(visitor.principal, self.control.settings)

    def _may(self, visitor: Visitor | None) -> Callable[..., bool]:
        """For templates: whether the visitor has a permission in a tenant, or on the platform."""
        access = None if visitor is None else self.access(visitor)

        def may(permission: str, tenant: str | None = None, *, owner: str | None = None) -> bool:
            if access is None:
                return False
            asked = Permission(permission)
            return access.may(asked, tenant) if owner is None else access.may_on(asked, owner, tenant or "")

        return may

    def parts(self, visitor: Visitor, template: str) -> Callable[[str, Mapping[str, Any]], str]:
        """A function that draws a part of a page from the name of a macro of `template` and its values."""
        common = {
            "home": HOME,
            "visitor": visitor,
            "may": self._may(visitor),
            "access": self.access(visitor),
            "csrf": visitor.csrf,
            "prices": self.control.settings.prices,
        }
        module = self._templates.get_template(template).make_module(common)

        def draw(name: str, values: Mapping[str, Any]) -> str:
            return str(getattr(module, name)(values))

        return draw

    def live_page(self, name: str, section: str, parts: Sequence[str], gather: Gather, path: str = "") -> list[Route]:
        """A page with the values of `gather`, at `path` (default: its name), and its live stream at live/NAME.

        The page is templates/NAME.html. The stream draws the macros `parts` of templates/parts/NAME.html.
        """

        async def page(request: Request, visitor: Visitor) -> Response:
            values = await gather(request, visitor)
            return self.render(request, visitor, f"{name}.html", {"section": section, **values})

        async def live(request: Request, visitor: Visitor) -> Response:
            draw_part = self.parts(visitor, f"parts/{name}.html")

            async def draw() -> Parts:
                values = await gather(request, visitor)
                return {part: draw_part(part, values) for part in parts}

            changes = self.control.queries.follow(visitor.principal)
            return self.stream(request, visitor, updates(self.control.clock, changes, only_changed(draw)))

        return [
            Route(path or f"/{name}", self.page(page), methods=["GET"]),
            Route(f"/live/{name}", self.page(live), methods=["GET"]),
        ]

    def stream(
        self, request: Request, visitor: Visitor, chunks: AsyncIterator[str] | AsyncIterator[bytes], **response: Any
    ) -> Response:
        """A response that may take long, counted as one of the visitor's streams; `response` are arguments of
        LongResponse.

        It ends when the visitor is no longer signed in.
        """

        async def reauthenticate() -> Principal:
            return (await self.auth.visitor(request)).principal

        def refuse(error: errors.CommonageError) -> Response:
            return _guarded(self.error(request, visitor, error))

        hold = self.control.connections.hold(Connection.STREAM, visitor.principal, reauthenticate)
        return LongResponse(chunks, hold, refuse, **response)

    def done(self, request: Request, text: str, path: str, tone: str = "good") -> Response:
        """The answer to a change: a notice on the page that sent it, or without scripts a redirect to `path`."""
        if is_partial(request):
            return notice(text, tone=tone)
        return RedirectResponse(f"{HOME}{path}", status_code=303)

    def error(self, request: Request, visitor: Visitor | None, error: errors.CommonageError) -> Response:
        """An error as a page with a way out, or as a notice if only a part of a page was requested."""
        status = error.status
        if isinstance(error, errors.EngineFailure) and error.native:
            log.warning("engine error on page: %s %s: %s", request.method, request.url.path, error)
        if is_partial(request):
            response = notice(messages.of_error(error), status=status, tone="bad")
        else:
            values = {"title": _TITLES[status], "status": status, "error": error, "retry": request.url.path}
            response = self.render(request, visitor, "error.html", values, status)
        if isinstance(error, errors.TooMany) and error.retry_after_s is not None:
            response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
        return response

    def _sign_in(self, request: Request, needed: SignInNeeded) -> Response:
        if is_partial(request):
            # htmx reloads the whole page, and that leads to the hub.
            return Response(needed.message, status_code=401, headers={"HX-Refresh": "true"})
        back_to = request.url.path if request.method == "GET" else HOME
        if request.method == "GET" and request.url.query:
            back_to += f"?{request.url.query}"
        return self.auth.to_sign_in(request, back_to)


def is_partial(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


def notice(text: str, *, status: int = 204, tone: str = "good") -> Response:
    """An answer that changes nothing on the page but shows a short notice."""
    # Headers are latin-1; other characters are sent as \u escapes.
    trigger = json.dumps({"notice": {"text": text, "tone": tone}})
    return Response(status_code=status, headers={"HX-Trigger": trigger, "HX-Reswap": "none"})


def _guarded(response: Response) -> Response:
    response.headers.update({name: text for name, text in HEADERS.items() if name not in response.headers})
    return response


def continue_at(address: str) -> HTMLResponse:
    """An intermediate page: the answer to a form may not redirect to another host."""
    target = html.escape(address)
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Continue</title>'
        f'<meta http-equiv="refresh" content="0; url={target}"><p><a href="{target}">Continue</a></p></html>'
    )


async def _form(request: Request) -> FormData:
    try:
        return await request.form(max_fields=_MOST_FIELDS)
    except HTTPException as error:
        raise errors.InvalidInput(f"The form cannot be read: {error.detail} Load the page again.") from error


def form_text(form: FormData, name: str) -> str:
    """A field of a form as text, without surrounding blanks; empty when it is absent or a file."""
    value = form.get(name)
    return value.strip() if isinstance(value, str) else ""
