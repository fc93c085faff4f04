"""Spans of requests that change something, or that come from a client which traces."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from commonage import tracing

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADER = tracing.HEADER.encode()


class TracedRequests:
    """Around the API and the portal. Pages poll, so plain reads have no span."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parent = ""
        if scope["type"] == "http":
            parent = next((value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER), "")
        if scope["type"] != "http" or (scope["method"] in _READS and not parent):
            await self._app(scope, receive, send)
            return
        with tracing.span(scope["method"], parent, begins=True, path=scope["path"]):
            await self._app(scope, receive, send)
