"""WebSockets for uvicorn, by aiohttp's server: no library is needed that is not here anyway.

uvicorn hands over the connection of a request that wants a WebSocket; aiohttp's own protocol reads that request again,
and the application is called for it as ASGI has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import WSMsgType, web
from starlette.types import ASGIApp

_PING_EVERY_S = 20.0  # proxies cut off what is silent for a minute
_MOST_BYTES = 1024 * 1024  # of one message
_Message = MutableMapping[str, Any]


def websocket_protocol(*, config: Any, **_: Any) -> asyncio.Protocol:
    """What uvicorn's `ws` setting takes: makes the protocol of one connection."""
    server = web.Server(partial(_serve, config.loaded_app), access_log=None)
    return server()


async def _serve(app: ASGIApp, request: web.BaseRequest) -> web.StreamResponse:
    bridge = _Bridge(request)
    pinging = asyncio.create_task(bridge.ping())
    try:
        await app(bridge.scope(), bridge.receive, bridge.send)
    finally:
        pinging.cancel()
    return bridge.answer()


class _Bridge:
    """One connection between ASGI's messages and aiohttp's calls."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._socket = web.WebSocketResponse(max_msg_size=_MOST_BYTES, compress=False)
        self._has_connected = False
        self._denial: tuple[int, Mapping[str, str]] | None = None
        self._body = b""

    def scope(self) -> _Message:
        """As ASGI describes the request."""
        request = self._request
        path, _, query = request.raw_path.partition("?")
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        return {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": request.path,
            "raw_path": path.encode("latin-1"),
            "root_path": "",
            "query_string": query.encode("latin-1"),
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
            "client": tuple(peer[:2]) if peer else None,
            "server": None,
            "subprotocols": [],
            "state": {},
            "extensions": {"websocket.http.response": {}},
        }

    async def receive(self) -> _Message:
        """The next of its messages."""
        if not self._has_connected:
            self._has_connected = True
            return {"type": "websocket.connect"}
        if not self._socket.prepared:
            return {"type": "websocket.disconnect", "code": 1006}
        message = await self._socket.receive()
        if message.type is WSMsgType.TEXT:
            return {"type": "websocket.receive", "text": message.data}
        if message.type is WSMsgType.BINARY:
            return {"type": "websocket.receive", "bytes": message.data}
        return {"type": "websocket.disconnect", "code": self._socket.close_code or 1006}

    async def send(self, message: _Message) -> None:
        """One of ours. Raises OSError, which is what ASGI wants, once it is gone."""
        match message["type"]:
            case "websocket.accept":
                await self._socket.prepare(self._request)
            case "websocket.send":
                if message.get("bytes") is not None:
                    await self._socket.send_bytes(message["bytes"])
                else:
                    await self._socket.send_str(message["text"])
            case "websocket.close":
                if self._socket.prepared:
                    await self._socket.close(code=message.get("code") or 1000)
                else:
                    self._denial = (403, {})
            case "websocket.http.response.start":
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
                self._denial = (message["status"], headers)
            case "websocket.http.response.body":
                self._body += message.get("body", b"")

    async def ping(self) -> None:
        """A sign of life, now and then."""
        while True:
            await asyncio.sleep(_PING_EVERY_S)
            if self._socket.prepared and not self._socket.closed:
                with suppress(OSError):  # whoever receives is told
                    await self._socket.ping()

    def answer(self) -> web.StreamResponse:
        """The end of it: the WebSocket, or why there was none."""
        if self._socket.prepared:
            return self._socket
        status, headers = self._denial or (403, {})
        kept = {name: value for name, value in headers.items() if name.lower() != "content-length"}
        return web.Response(status=status, headers={**kept, "Connection": "close"}, body=self._body)
