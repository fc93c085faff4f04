"""HTTP clients of the control plane, without the environment's proxies."""

from __future__ import annotations

import logging
import ssl

import httpx2

log = logging.getLogger(__name__)
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)


class HttpTransport(httpx2.AsyncHTTPTransport):
    """Raises httpx2.TransportError for a connection that is reset while it opens.

    uvloop then has no socket any more, and anyio asks that for its address: AttributeError. A listener that closes
    without accepting suffices.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            log.debug("no answer from %s", request.url.host, exc_info=True)
            raise httpx2.ConnectError("the connection was reset", request=request) from error


def http_client(
    *,
    timeout: httpx2.Timeout | float,
    base_url: str = "",
    limits: httpx2.Limits = _LIMITS,
    verify: ssl.SSLContext | bool = True,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> httpx2.AsyncClient:
    """`limits` and `verify` have no effect on a given `transport`."""
    transport = transport or HttpTransport(verify=verify, trust_env=False, limits=limits)
    return httpx2.AsyncClient(base_url=base_url, trust_env=False, timeout=timeout, transport=transport)
