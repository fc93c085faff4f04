"""HTTP clients of the control plane, without the environment's proxies."""

from __future__ import annotations

import ssl

import httpx2

_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)


class HttpTransport(httpx2.AsyncHTTPTransport):
    """Raises httpx2.TransportError when a connection is reset in the moment in which it was opened.

    uvloop then has no socket any more, and anyio asks that for its address: AttributeError. A listener that closes
    without accepting suffices.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            raise httpx2.ConnectError("the connection was reset", request=request) from error


def http_client(
    *,
    timeout: httpx2.Timeout | float,
    base_url: str = "",
    limits: httpx2.Limits = _LIMITS,
    verify: ssl.SSLContext | bool = True,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> httpx2.AsyncClient:
    transport = transport or HttpTransport(verify=verify, trust_env=False, limits=limits)
    return httpx2.AsyncClient(base_url=base_url, trust_env=False, timeout=timeout, transport=transport)
