"""Single requests straight to an ASGI application, as far as a test wants to read: streams and WebSockets too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

_PATIENCE_S = 30.0
Enough = Callable[[bytes], bool]


@dataclass
class Answer:
    """`accepted`: a WebSocket was opened. The body of a stream is what came until it was left."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    accepted: bool = False


async def ask(
    app: Any,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
    enough: Enough = bool,
) -> Answer:
    """`method` may be WEBSOCKET. The client leaves once `enough` is true for the body so far."""
    parts, found, left = urlsplit(url), Answer(), asyncio.Event()
    sent = {"host": "here.example", **(headers or {})}
    body = urlencode(form).encode() if form is not None else b""
    if form is not None:
        sent |= {"content-type": "application/x-www-form-urlencoded", "content-length": str(len(body))}
    is_socket = method == "WEBSOCKET"
    scope = {
        "type": "websocket" if is_socket else "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "ws" if is_socket else "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "client": ("127.0.0.1", 40000),
        "server": ("here.example", 80),
        "extensions": {"websocket.http.response": {}},
        **({"subprotocols": []} if is_socket else {"method": method}),
    }
    incoming = [{"type": "websocket.connect"} if is_socket else {"type": "http.request", "body": body}]

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop(0)
        await left.wait()
        return {"type": "websocket.disconnect", "code": 1000} if is_socket else {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind.endswith(".start"):
            found.status = message["status"]
            found.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        elif kind.endswith(".body"):
            found.body += message.get("body", b"")
            if enough(found.body):
                left.set()
        elif kind in ("websocket.accept", "websocket.close"):
            found.accepted = kind == "websocket.accept"
            left.set()

    async with asyncio.timeout(_PATIENCE_S):
        await app(scope, receive, send)
    return found
