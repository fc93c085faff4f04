"""uvicorn inside the server's event loop, with limits on clients that do not read, send too much or are gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio import BaseTransport
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

_MAX_FRAGMENTS = 1024  # of one message; otherwise empty fragments could be collected without limit
_HEAD_BYTES = 64 * 1024  # of the request line and all headers
_SHUTDOWN_S = 1  # live streams never end by themselves; at shutdown they are cut off after this time


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Pings only keep proxies from closing an idle connection. A late pong ends nothing: a client that is slow, or a
    pager that is paused, may leave pings unread for minutes.
    """

    silence_s: ClassVar[float] = 3600.0
    """Idle timeout in seconds: a connection ends if the client neither sends nor receives data for this time."""

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._active_at = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Refuse frames before the answer to the handshake, and requests that the parser refuses."""
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.abort()
            return
        self._active_at = self.loop.time()
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # uvicorn leaves the parser's answer unsent, and the connection open.
            answer = b"".join(self.conn.data_to_send()) or self.conn.reject(400, "Invalid request.\n").serialize()
            self.transport.write(answer)
            self.transport.close()

    def resume_writing(self) -> None:
        """The client has taken data."""
        self._active_at = self.loop.time()
        super().resume_writing()

    def handle_cont(self, event: Frame) -> None:
        if self.transport.is_closing():
            return
        if len(self.frames) >= _MAX_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {_MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()
        else:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Drop the pong if the client does not read: pongs are written without regard to the size of the buffer."""
        if self.writable.is_set() or self.conn.close_sent is not None:
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def schedule_ping(self) -> None:
        """Ignore the round-trip time: uvicorn subtracts it from the interval, and a slow client would get a storm."""
        self.last_ping_rtt = 0.0
        super().schedule_ping()

    def send_keepalive_ping(self) -> None:
        """Ping a client that reads; drop one that has been silent for too long, with its unsent data."""
        if self.loop.time() - self._active_at >= self.silence_s:
            self.transport.abort()
        elif self.close_sent or self.transport.is_closing() or not self.writable.is_set():
            self.schedule_ping()
        else:
            super().send_keepalive_ping()

    async def send(self, message: Any) -> None:
        """Send for the application. Raises ClientDisconnected once either side has closed the connection."""
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)


WEBSOCKETS: Final[dict[str, Any]] = {
    "ws": WebSocketProtocol,
    "ws_max_size": 1024 * 1024,  # bytes of one message
    "ws_per_message_deflate": False,
    "ws_ping_interval": 20.0,  # seconds; proxies close a connection that is idle for a minute
    "ws_ping_timeout": None,  # `silence_s` instead
}
"""uvicorn's settings."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's own protocol does not limit the headers in memory; this one does. The body is limited elsewhere."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes: int | None = 0  # of the request whose headers are being read
        self._received = 0  # bytes of the data that are being parsed

    def data_received(self, data: bytes) -> None:
        """Refuse a request whose headers exceed the limit."""
        self._received = len(data)
        super().data_received(data)
        if self._head_bytes is None or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > _HEAD_BYTES:
            self.send_400_response(f"The headers are too large: at most {_HEAD_BYTES} bytes are allowed.")

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Count again from the next data on: these still hold the end of the body."""
        self._head_bytes = -self._received
        super().on_message_complete()


class _Quiet(uvicorn.Server):
    """uvicorn without signal handlers; the server's main handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


Proxies = Callable[[], Collection[str]]
"""Addresses and networks of the proxies at this moment."""


def no_proxies() -> Collection[str]:
    return ()


class _BehindProxies:
    """Trusts forwarding headers of callers on this machine, and of `proxies`, which come and go."""

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self._app, self._proxies = app, proxies
        self._known: frozenset[str] | None = None
        self._trusting: Any = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = frozenset(self._proxies())
        if known != self._known:
            self._known, self._trusting = known, ProxyHeadersMiddleware(self._app, ["127.0.0.1", *known])  # type: ignore[arg-type]  # ASGI's types by two names
        await self._trusting(scope, receive, send)


class Web:
    """Serves `app` on a bound socket.

    `behind_proxy`: forwarding headers of callers on this machine, and of `proxies`, are trusted.
    """

    def __init__(
        self, app: Any, listening: socket.socket, *, behind_proxy: bool = True, proxies: Proxies = no_proxies
    ) -> None:
        config = uvicorn.Config(
            _BehindProxies(app, proxies) if behind_proxy else app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            http=HttpProtocol,
            proxy_headers=False,  # uvicorn's own takes a list that never changes
            timeout_graceful_shutdown=_SHUTDOWN_S,
            # Longer than the proxy keeps an idle connection (90 s): else it may send on one that is just being closed.
            timeout_keep_alive=120,
            **WEBSOCKETS,
        )
        self._server = _Quiet(config)
        self._socket = listening
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Start to serve; earlier requests wait in the socket. The task ends when serving does."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="web")
        return self._task

    async def stop(self) -> None:
        """Answer the pending requests, cut off streams, close."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait({self._task})
        self._socket.close()
