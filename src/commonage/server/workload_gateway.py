"""The workload gateway: containers reach the APIs of hub and control plane through it, and no other path.

Relays of the engines and tunnels of agents connect to its loopback port. Its callers never count as local, and their
forwarding headers are ignored.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from commonage.api.failures import answer
from commonage.api.problems import PROBLEMS, problem
from commonage.server.http_client import http_client
from commonage.wire.hub import API_PATH

HUB_API_PATH = "/hub/api"
# Only these request headers are passed to the hub's API: no cookies, and nothing about proxies.
_TO_HUB = frozenset(
    {b"accept", b"accept-encoding", b"authorization", b"content-type", b"content-length", b"user-agent"}
)
_FORWARDING = re.compile(rb"forwarded|via|x-forwarded.*|x-real-ip|x-scheme|x-client-ip|true-client-ip", re.IGNORECASE)
_OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "trailer", "te"})
_HUB_TIMEOUT = httpx2.Timeout(30.0, read=None)  # the hub's event streams last


@dataclass(frozen=True, slots=True)
class WorkloadAccess:
    """Access of containers to the gateway: they connect to `ports`, and `gateway_port` of the loopback serves them."""

    ports: tuple[int, ...] = ()
    gateway_port: int = 0


NO_ACCESS = WorkloadAccess()
"""Containers cannot reach the gateway."""


class WorkloadGateway:
    """An ASGI application. `api` is the control plane's, `hub_url` the hub's address without a trailing slash."""

    def __init__(self, api: Any, hub_url: str) -> None:
        self._api: ASGIApp = api
        self._hub_url = httpx2.URL(hub_url)
        self._hub = http_client(timeout=_HUB_TIMEOUT)

    async def close(self) -> None:
        await self._hub.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _is_below(API_PATH, scope):
            await self._api(_without_forwarding(scope), receive, send)
        elif scope["type"] == "http" and _is_below(HUB_API_PATH, scope):
            response = await self._forward_to_hub(Request(scope, receive))
            await response(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _forward_to_hub(self, request: Request) -> Response:
        headers = [(name, value) for name, value in request.scope["headers"] if name in _TO_HUB]
        query = request.scope["query_string"]
        target = request.scope["raw_path"] + (b"?" + query if query else b"")
        has_body = any(name in request.headers for name in ("content-length", "transfer-encoding"))
        try:
            outgoing = self._hub.build_request(
                request.method,
                self._hub_url.copy_with(raw_path=target),
                headers=headers,
                content=request.stream() if has_body else None,
            )
            received = await self._hub.send(outgoing, stream=True)
        except (ClientDisconnect, httpx2.InvalidURL):
            return answer(problem(PROBLEMS["not-found"], "The request is incomplete, or its path is invalid."))
        except httpx2.TransportError as error:
            why = f"JupyterHub does not answer: {error}. Try again in a few seconds."
            return answer(problem(PROBLEMS["unavailable"], why, retryable=True))
        response = StreamingResponse(_body(received), received.status_code)
        response.raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in received.headers.multi_items()
            if name.lower() not in _OF_ONE_CONNECTION
        ]
        return response


async def _body(received: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for part in received.aiter_raw():
            yield part
    finally:
        await received.aclose()


def _is_below(prefix: str, scope: Scope) -> bool:
    """Whether the path is the prefix or below it, taken literally: a path that could be read in another way is not."""
    path, raw = scope["path"], scope["raw_path"].decode("latin-1")
    plain = not any(part in (".", "..") for part in re.split(r"[/\\]", path))
    return plain and all(one == prefix or one.startswith(f"{prefix}/") for one in (path, raw))


def _without_forwarding(scope: Scope) -> Scope:
    headers = [one for one in scope["headers"] if not _FORWARDING.fullmatch(one[0])]
    return {**scope, "client": None, "headers": headers}


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    why = (
        f"Containers reach only {HUB_API_PATH} and {API_PATH} at this address. Use the platform's public address for "
        "pages; /metrics is read there with a token."
    )
    await answer(problem(PROBLEMS["not-found"], why))(scope, receive, send)
