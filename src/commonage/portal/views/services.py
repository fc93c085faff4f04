"""Sign-in to services: the proxy asks here about each request, and the portal signs its visitors in there.

A service has an origin of its own (or, without `session_host`, a path of its own), so the portal's cookie is not sent
there. A visitor without a cookie for it is sent to the portal, which checks the permission and sends them back with a
sealed ticket; the ticket becomes the cookie. Each request is checked again, so that a role taken away ends the access.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.domain.errors import CommonageError, Forbidden, Unauthenticated
from commonage.domain.principals import Principal
from commonage.portal.auth import HOME, SERVICE_COOKIE, Visitor
from commonage.portal.site import Site
from commonage.wire.hub import SERVICE_ACCESS_PATH
from commonage.wire.origins import SERVICE_PATH, service_url

TICKET = "commonage-ticket"
_TOKEN = re.compile(r"(?:token|bearer)\s+(\S+)", re.IGNORECASE)
_OURS = re.compile(r"(__Host-)?(commonage|jupyterhub)-")
_LONGEST = 2000


def routes(site: Site) -> list[Route]:
    """GET workloads/ID/service for browsers, and the proxy's question."""
    view = _Services(site)
    ask = SERVICE_ACCESS_PATH.removeprefix(HOME.rstrip("/"))
    return [
        Route("/workloads/{id}/service", site.page(view.enter), methods=["GET"]),
        # traefik asks by GET for requests of all methods.
        Route(f"{ask}{{id}}", view.ask, methods=["GET"]),
    ]


class _Services:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._control = site.control

    async def enter(self, request: Request, visitor: Visitor) -> Response:
        """Send a visitor who may use the service to it, with a ticket. Its owner is notified first if the visitor is
        another user.
        """
        workload = await self._control.visits.enter_service(visitor.principal, request.path_params["id"])
        ticket = self._site.auth.ticket(request, workload.id)
        path = request.query_params.get("next", "")[:_LONGEST].lstrip("/")
        address = service_url(self._control.settings.session_origin, workload.id) + (path if path.isprintable() else "")
        joint = "&" if "?" in address else "?"
        return RedirectResponse(f"{address}{joint}{urlencode({TICKET: ticket})}", status_code=302)

    async def ask(self, request: Request) -> Response:
        """200 with the headers that the service receives, a redirect for the browser, or a refusal."""
        try:
            return await self._answer(request)
        except CommonageError as error:
            return PlainTextResponse(messages.of_error(error), status_code=error.status)

    async def _answer(self, request: Request) -> Response:
        headers = request.headers
        target = urlsplit(headers.get("x-forwarded-uri", "/"))
        workload_id = request.path_params["id"]  # from the route, not from what the browser sends
        _check_origin(headers)
        query = parse_qsl(target.query, keep_blank_values=True)
        ticket = dict(query).get(TICKET)
        if ticket is not None and self._site.auth.opened_ticket(ticket, workload_id) is not None:
            rest = urlencode([one for one in query if one[0] != TICKET])
            origin = self._origin_of(workload_id, headers)  # traefik would make a path one of the control plane
            address = f"{origin}{target.path}" + (f"?{rest}" if rest else "")
            response: Response = RedirectResponse(address, status_code=302)
            path, is_secure = self._cookie_path(workload_id), origin.startswith("https:")
            self._site.auth.set_service_cookie(response, ticket, path, is_secure)
            return response
        given = await self._bearer(headers.get("authorization", ""))
        principal = given or await self._visitor(request.cookies.get(SERVICE_COOKIE), workload_id)
        if principal is None:
            return self._to_portal(headers, target.path, target.query, workload_id)
        await self._control.visits.check_service(principal, workload_id)
        passed = {"X-Commonage-User": principal.name}
        if cookies := _of_the_service(headers.get("cookie", "")):
            passed["Cookie"] = cookies
        if given is None and "authorization" in headers:
            passed["Authorization"] = headers["authorization"]
        return Response(status_code=200, headers=passed)

    def _cookie_path(self, workload_id: str) -> str:
        return "/" if self._control.settings.session_origin else f"{SERVICE_PATH}{workload_id}/"

    async def _bearer(self, authorization: str) -> Principal | None:
        """The user whose token a program sends; None if the token is not the hub's, but for the service itself."""
        found = _TOKEN.fullmatch(authorization.strip())
        return None if found is None else await self._control.identity.whois(found[1])

    async def _visitor(self, cookie: str | None, workload_id: str) -> Principal | None:
        token = self._site.auth.opened_service_cookie(cookie, workload_id)
        return None if token is None else await self._control.identity.whois(token)

    def _to_portal(self, headers: Mapping[str, str], path: str, query: str, workload_id: str) -> Response:
        is_page = headers.get("x-forwarded-method", "GET") == "GET" and "text/html" in headers.get("accept", "")
        if not is_page or headers.get("sec-fetch-dest", "document") != "document":
            raise Unauthenticated("Sign in to use this service: open its address in the browser, or send a token.")
        rest = urlencode([one for one in parse_qsl(query, keep_blank_values=True) if one[0] != TICKET])
        below = path.removeprefix(f"{SERVICE_PATH}{workload_id}") + (f"?{rest}" if rest else "")
        page = f"{HOME}workloads/{workload_id}/service?{urlencode({'next': below})}"
        return RedirectResponse(f"{self._portal_origin(headers)}{page}", status_code=302)

    def _origin_of(self, workload_id: str, headers: Mapping[str, str]) -> str:
        origin = self._control.settings.session_origin
        return service_url(origin, workload_id).rstrip("/") if origin else self._portal_origin(headers)

    def _portal_origin(self, headers: Mapping[str, str]) -> str:
        return self._control.settings.portal_origin or f"http://{headers.get('x-forwarded-host', '')}"


def _check_origin(headers: Mapping[str, Any]) -> None:
    """Refuse requests from pages of other origins, except links to a page: they would carry the visitor's cookie."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("x-forwarded-method", "GET") == "GET"
    foreign = site not in (None, "same-origin", "none")
    if origin is not None:
        foreign = origin.partition("://")[2] != headers.get("x-forwarded-host")
    if foreign and not is_link:
        raise Forbidden("The request came from the page of another origin. Open the service itself.", code="csrf")


def _of_the_service(cookies: str) -> str:
    """The cookies without those of hub and portal."""
    parts = [part.strip() for part in cookies.split(";")]
    return "; ".join(part for part in parts if part and not _OURS.match(part))
