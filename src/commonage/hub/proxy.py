"""The proxy's routes, and the guards before hub and portal against requests from pages of users' servers.

A user's server runs that user's code, and so do its pages in the browsers that open them. Browsers send headers
that no script can set (`Sec-Fetch-*`), which name the origin and purpose of a request; the guards refuse requests
that no page of hub or portal makes. Over plain HTTP, except on the loopback, browsers send none of these headers.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

from jupyterhub import orm
from jupyterhub_traefik_proxy.fileprovider import TraefikFileProviderProxy
from jupyterhub_traefik_proxy.traefik_utils import generate_rule
from traitlets import Bool, Bytes, List, Unicode

from commonage.wire.hub import API_PATH, DOCS_PATH, PORTAL_PATH, REFUSED_PATH, HubSettings
from commonage.wire.origins import SESSION_UNAVAILABLE, UNAVAILABLE, session_domain

# Prefix of all names made here, by which leftovers of an earlier configuration are found.
_MARK = "guard-"
_SESSION_HEADERS = f"{_MARK}session-headers"
_TO_HUB = f"{_MARK}to-hub"
_REFUSE = f"{_MARK}refuse"
_CONTROL = f"{_MARK}control"
_TO_SESSION = f"{_MARK}to-session"
_PROXY_KEY = f"{_MARK}proxy-key"
PROXY_KEY_HEADER = "X-Commonage-Proxy-Key"
"""The proxy adds it to requests for the hub, so that the hub believes the client's address in them."""
_PAGE = "-page"
_FIRST = 1_000_000  # the priority of a route is the length of its rule, unless it is given

_PAGES_OF_HUB = "PathPrefix(`/hub/`) && !PathPrefix(`/hub/static/`) && !Path(`/hub/logo`)"
_PAGES = "(PathPrefix(`/hub/`) || PathPrefix(`/services/`))"
# The portal checks requests to its pages itself; the API takes no cookies.
_BY_SCRIPT_OR_FRAME = "HeaderRegexp(`Sec-Fetch-Dest`, `.`) && !Header(`Sec-Fetch-Dest`, `document`)"
# These carry a token of the hub's pages, and the hub checks it, but not in the mode `no-cors`.
_BY_PAGE_OF_HUB = (
    "PathPrefix(`/hub/api/`) && Header(`Sec-Fetch-Site`, `same-origin`) && Header(`Sec-Fetch-Dest`, `empty`) "
    "&& !Header(`Sec-Fetch-Mode`, `no-cors`)"
)
# A learning platform at the same site posts its users' sign-ins. `hub.lti` checks these forms itself.
_FORM_OF_ANOTHER_ORIGIN = (
    "PathPrefix(`/hub/`) && !PathRegexp(`^/hub/lti/(login|launch)$`) && Header(`Sec-Fetch-Site`, `same-site`) "
    "&& !Method(`GET`)"
)
# A sign-in that begins at a session, and a stopped session, lead to these pages; none of them changes anything.
_WAY_TO_SESSION = "PathRegexp(`^/hub/(login|oauth_login|user/|api/oauth2/authorize)`)"
_PAGES_OF_PORTAL = (
    f"PathPrefix(`{PORTAL_PATH}`) && !PathPrefix(`{API_PATH}/`) && !PathPrefix(`{PORTAL_PATH}static/`)"
    f" && !PathPrefix(`{DOCS_PATH}`) && !PathRegexp(`^{PORTAL_PATH}workloads/[0-9a-z]+/service$`)"
)
_OPENED_BY_PEOPLE = "Method(`GET`) && HeaderRegexp(`Accept`, `text/html`)"
_FROM_SESSION = "HeaderRegexp(`Referer`, `^https?://[^/]+/(user|service)/`)"


class GuardedProxy(TraefikFileProviderProxy):
    """traefik with the hub's routes, and the guards."""

    serves_rules = Bool(
        False, help="Whether the proxy fetches the routes (`hub.proxy_rules`) instead of reading them from a file."
    ).tag(config=True)
    entry_points = List(Unicode(), default_value=["http"], help="Where traefik listens, by its names.").tag(config=True)
    _has_all_routes = Bool(False)
    _served = Bytes(b"")  # empty: to be made again

    def _dynamic_config_for_route(
        self, routespec: str, target: str, data: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The library's configuration of a route; the pages of sessions get headers that protect their visitors'
        browsers.
        """
        traefik, kept = super()._dynamic_config_for_route(routespec, target, data)
        routers, services = traefik["http"]["routers"], traefik["http"]["services"]
        for name, router in list(routers.items()):
            router["entryPoints"] = list(self.entry_points)
            router["middlewares"] = [UNAVAILABLE, _PROXY_KEY] if "hub" in data else [UNAVAILABLE]
            if "user" in data:
                # Only pages are replaced. Other answers are passed on unchanged, including a 502 of an app.
                router["middlewares"] = [_SESSION_HEADERS]
                routers[f"{name}{_PAGE}"] = {
                    **router,
                    "rule": f"({router['rule']}) && {_OPENED_BY_PEOPLE}",
                    "middlewares": [_SESSION_HEADERS, SESSION_UNAVAILABLE],
                }
                services[router["service"]]["loadBalancer"]["serversTransport"] = _TO_SESSION
            elif self.app.subdomain_host:
                # Accept every host name of this machine: programs may use any, and browsers are redirected to the right
                # one.
                router["rule"] = generate_rule(routespec[routespec.index("/") :])
        return traefik, kept

    def _keys_for_route(self, routespec: str) -> tuple[Any, Any]:
        (router, service), kept = super()._keys_for_route(routespec)
        return (router, [*router[:-1], f"{router[-1]}{_PAGE}"], service), kept

    async def _setup_traefik_dynamic_config(self) -> None:
        self._forget_earlier_addresses()
        http = self.dynamic_config["http"]
        for kind in ("routers", "middlewares", "services", "serversTransports"):
            http[kind] = {name: one for name, one in http.get(kind, {}).items() if not name.startswith(_MARK)}
        for route in self.dynamic_config["jupyterhub"]["routes"].values():
            rules, _ = self._dynamic_config_for_route(route["routespec"], route["target"], route["data"])
            for kind, own in rules["http"].items():
                http[kind] |= own
        await super()._setup_traefik_dynamic_config()

    # --- for a proxy that fetches the rules --------------------------------------------------------------------------

    def _persist_dynamic_config(self) -> None:
        if self.serves_rules:
            self._served = b""
        else:
            super()._persist_dynamic_config()

    async def check_routes(self, user_dict: Any, service_dict: Any, routes: Any = None) -> None:
        if self.serves_rules and not self._has_all_routes:
            await self.get_all_routes()  # after the guards are set
            self._restore_routes()
            routes, self._has_all_routes = None, True
        await super().check_routes(user_dict, service_dict, routes)

    def _restore_routes(self) -> None:
        """Take the routes of all sessions from the hub's database: this hub has no file of them.

        The hub checks sessions after it has started, and adds the route of each only then. Rules without them would cut
        off those who work.
        """
        found = [(self.app.hub.routespec, self.hub.host, {"hub": True})]
        found += [
            (one.proxy_spec, one.server.host, {"service": one.name})
            for one in self.app._service_map.values()
            if one.server is not None
        ]
        for row in self.app.db.query(orm.Spawner).filter(orm.Spawner.server_id.isnot(None)):
            spawner = self.app.users[row.user].spawners[row.name]
            if spawner.server is not None and spawner.server.port:
                data = {"user": row.user.name, "server_name": row.name}
                found.append((spawner.proxy_spec, spawner.server.host, data))
        for routespec, target, data in found:
            rules, kept = self._dynamic_config_for_route(self.validate_routespec(routespec), target, data)
            for kind, own in rules["http"].items():
                self.dynamic_config["http"][kind] |= own
            self.dynamic_config["jupyterhub"]["routes"] |= kept["routes"]
        self._persist_dynamic_config()

    def served_rules(self) -> bytes | None:
        """The rules as JSON; None until the routes of all sessions are among them."""
        if not self._has_all_routes:
            return None
        if not self._served:
            http = dict(self.dynamic_config["http"])
            # The proxy has its own.
            http["routers"] = {name: one for name, one in http["routers"].items() if name != "route_api"}
            http["middlewares"] = {name: one for name, one in http["middlewares"].items() if name != "auth_api"}
            self._served = json.dumps({"http": http}).encode()
        return self._served

    def _forget_earlier_addresses(self) -> None:
        """Remove routes to services at other addresses than today's.

        The hub looks for a service's route by the service's name: it would take such a route for the right one, add
        none, and then remove it.
        """
        routes = self.dynamic_config["jupyterhub"]["routes"]
        for route in list(routes.values()):
            service = self.app._service_map.get(route["data"].get("service"))
            if service is not None and service.proxy_spec != route["routespec"]:
                in_traefik, in_hub = self._keys_for_route(route["routespec"])
                for keys in (*in_traefik, *(["jupyterhub", *one] for one in in_hub)):
                    self.dynamic_config[keys[0]][keys[1]].pop(keys[2], None)


def guards(settings: HubSettings, proxy_key: str) -> dict[str, Any]:
    """traefik's routers, middlewares and services that come before all routes. `proxy_key`: see PROXY_KEY_HEADER."""
    refused = [f"{_PAGES_OF_HUB} && {_BY_SCRIPT_OR_FRAME} && !({_BY_PAGE_OF_HUB})", _FORM_OF_ANOTHER_ORIGIN]
    led_to_hub = []
    stripped = ["Clear-Site-Data", "Service-Worker-Allowed"]
    if settings.session_origin:
        hub = f"Host(`{urlsplit(settings.public_url or '').hostname}`)"
        sessions = f"HostRegexp(`^[^.]+\\.{re.escape(session_domain(settings.session_origin))}$`)"
        led_to_hub = [f"{sessions} && {_PAGES}", f"!{hub} && !{sessions} && {_PAGES} && {_OPENED_BY_PEOPLE}"]
    else:
        refused.append(f"({_PAGES_OF_HUB} && !{_WAY_TO_SESSION} || {_PAGES_OF_PORTAL}) && {_FROM_SESSION}")
        stripped.append("Cross-Origin-Opener-Policy")  # otherwise it could keep access to a window that it opens
    routers = {
        f"{_MARK}{middleware.removeprefix(_MARK)}-{number}": {
            "rule": rule,
            "priority": priority,
            "service": _CONTROL,
            "middlewares": [UNAVAILABLE, middleware],
            "entryPoints": settings.entry_points,
        }
        for middleware, rules, priority in ((_TO_HUB, led_to_hub, _FIRST + 1), (_REFUSE, refused, _FIRST))
        for number, rule in enumerate(rules)
    }
    middlewares = {
        _SESSION_HEADERS: {"headers": {"customResponseHeaders": dict.fromkeys(stripped, "")}},
        _PROXY_KEY: {"headers": {"customRequestHeaders": {PROXY_KEY_HEADER: proxy_key}}},
        _REFUSE: {"replacePath": {"path": REFUSED_PATH}},
        _TO_HUB: {"redirectRegex": {"regex": "^https?://[^/]+(/.*)$", "replacement": f"{settings.public_url}${{1}}"}},
    }
    services = {_CONTROL: {"loadBalancer": {"servers": [{"url": settings.control_url}], "passHostHeader": True}}}
    # A connection that was open when its node lost power stays open here, and a request over it waits for the answer.
    # A new connection fails soon. So idle ones are kept for bursts only; requests themselves may last.
    timeouts = {"dialTimeout": "5s", "idleConnTimeout": "250ms"}
    return {
        "routers": routers,
        "middlewares": middlewares,
        "services": services,
        "serversTransports": {_TO_SESSION: {"forwardingTimeouts": timeouts}},
    }
