"""The proxy's rules for services, and their health checks. Called by the loop of services.

traefik asks the portal (`forwardAuth`) about each request before it passes it on; so a service is reachable only for
those who are signed in and may use it, and its answers do not go through the control plane.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx2

from commonage.domain.services import ServiceRoute
from commonage.server.http_client import HttpTransport
from commonage.server.proxy_rules import PutRules
from commonage.wire.hub import PORTAL_PATH, SERVICE_ACCESS_PATH
from commonage.wire.origins import SERVICE_LABEL, SERVICE_PATH, service_url, session_domain

_FIRST = 2_000_000  # before all other routes
_ACCESS, _HEADERS, _ENDED = "service-access", "service-headers", "service-ended"
_ID = "[0-9a-z]{13}"
_CHECK_HEADERS = {"User-Agent": "commonage-health-check", "Accept": "*/*"}


@cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class TraefikServices:
    """`hub` is the origin of the portal, None if it is not known."""

    put_rules: PutRules
    control_url: str
    entry_points: tuple[str, ...]
    hub: str | None
    session_origin: str
    within_s: float = 5.0
    """The longest time of a health check."""

    async def publish(self, routes: Sequence[ServiceRoute]) -> None:
        await self.put_rules(json.dumps(self.configuration(routes), indent=1))  # JSON is YAML

    async def failure(self, url: str, path: str) -> str | None:
        try:
            # The transport's own timeout is one for each read, and a service may send a byte from time to time, or 103
            # without end. A client would also read cookies and the address of a redirect, which a service chooses.
            asked = httpx2.Request("GET", f"{url}{path or '/'}", headers=_CHECK_HEADERS)
            async with asyncio.timeout(self.within_s), HttpTransport(verify=_trusted(), trust_env=False) as transport:
                answer = await transport.handle_async_request(asked)
                await answer.aclose()
        except TimeoutError:
            return f"no answer within {self.within_s:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            return str(error) or type(error).__name__
        is_healthy = not path or answer.status_code < httpx2.codes.BAD_REQUEST
        return None if is_healthy else f"status {answer.status_code}"

    def configuration(self, routes: Sequence[ServiceRoute]) -> dict[str, Any]:
        """traefik's rules for these services, and for addresses of services that do not run."""
        routers: dict[str, Any] = {_ENDED: self._router(self._any(), _FIRST, _ACCESS, [_ENDED])}
        services: dict[str, Any] = {_ACCESS: _balanced(self.control_url)}
        for one in routes:
            name = f"service-{one.workload_id}"
            middlewares = [f"{name}-access", _HEADERS, *([] if self.session_origin else [f"{name}-prefix"])]
            routers[name] = self._router(self._rule(one.workload_id), _FIRST + 1, name, middlewares)
            services[name] = _balanced(one.url)
        middlewares_: dict[str, Any] = {
            _HEADERS: {
                "headers": {"customResponseHeaders": dict.fromkeys(("Clear-Site-Data", "Service-Worker-Allowed"), "")}
            },
            _ENDED: {"redirectRegex": self._redirect()},
        }
        for one in routes:
            name = f"service-{one.workload_id}"
            middlewares_[f"{name}-access"] = {"forwardAuth": self._access(one.workload_id)}
            if not self.session_origin:
                prefixes = [f"{SERVICE_PATH}{one.workload_id}"]
                middlewares_[f"{name}-prefix"] = {"stripPrefix": {"prefixes": prefixes}}
        return {"http": {"routers": routers, "services": services, "middlewares": middlewares_}}

    def _access(self, workload_id: str) -> dict[str, Any]:
        return {
            "address": f"{self.control_url}{SERVICE_ACCESS_PATH}{workload_id}",
            # Each replaces the browser's, or removes it.
            "authResponseHeaders": ["Cookie", "Authorization", "X-Commonage-User"],
            "trustForwardHeader": False,
            "maxResponseBodySize": 65536,
        }

    def _router(self, rule: str, priority: int, service: str, middlewares: list[str]) -> dict[str, Any]:
        return {
            "rule": rule,
            "priority": priority,
            "service": service,
            "middlewares": middlewares,
            "entryPoints": list(self.entry_points),
        }

    def _rule(self, workload_id: str) -> str:
        if not self.session_origin:
            return f"PathPrefix(`{SERVICE_PATH}{workload_id}/`)"
        return f"Host(`{urlsplit(service_url(self.session_origin, workload_id)).hostname}`)"

    def _any(self) -> str:
        if not self.session_origin:
            return f"PathRegexp(`^{SERVICE_PATH}{_ID}(/|$)`)"
        return f"HostRegexp(`^{SERVICE_LABEL}{_ID}\\.{re.escape(session_domain(self.session_origin))}$`)"

    def _redirect(self) -> dict[str, str]:
        """To the workload's page, which says why it does not run."""
        page = f"{PORTAL_PATH}workloads/"
        if not self.session_origin:
            return {"regex": f"^(https?://[^/]+){SERVICE_PATH}({_ID})(/.*)?$", "replacement": f"${{1}}{page}${{2}}"}
        return {"regex": f"^https?://{SERVICE_LABEL}({_ID})\\..*$", "replacement": f"{self.hub}{page}${{1}}"}


def _balanced(url: str) -> dict[str, Any]:
    return {"loadBalancer": {"servers": [{"url": url}], "passHostHeader": True}}
