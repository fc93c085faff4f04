"""Serves the hub's routes to a proxy that shares no folder with the hub (`server.proxy_rules` fetches them)."""

from __future__ import annotations

import hmac

from tornado.web import RequestHandler

from commonage.hub.proxy import GuardedProxy


class ProxyRules(RequestHandler):
    def initialize(self, proxy: GuardedProxy) -> None:
        self._proxy = proxy

    def _log(self) -> None:
        """Proxies ask several times a second."""

    def get(self) -> None:
        """The rules as JSON; 503 until the routes of all sessions are known, 304 if the caller has the newest."""
        expected = f"token {self._proxy.traefik_api_password}"
        if not hmac.compare_digest(self.request.headers.get("Authorization", "").encode(), expected.encode()):
            self.set_status(403)
            return
        rules = self._proxy.served_rules()
        if rules is None:
            self.set_status(503)
            return
        self.set_header("Content-Type", "application/json")
        self.write(rules)  # tornado adds the tag, and answers 304


class ProxyRulesReady(RequestHandler):
    """For the readiness probe, which has no token."""

    def initialize(self, proxy: GuardedProxy) -> None:
        self._proxy = proxy

    def _log(self) -> None: ...

    def get(self) -> None:
        self.set_status(503 if self._proxy.served_rules() is None else 200)
