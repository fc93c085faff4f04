"""uvicorn inside the server's event loop, without its signal handlers and log. Made by the server's main."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from commonage.server.web.websockets import WEBSOCKETS

_HEAD_BYTES = 64 * 1024  # of the request line and all headers
_SHUTDOWN_S = 1  # live streams never end by themselves; at shutdown they are cut off after this time


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
        """Stop counting: only the body follows."""
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
        """Install no signal handlers."""
        yield


class Web:
    """Serves `app` on a bound socket between `start` and `stop`.

    `behind_proxy`: forwarding headers of callers on this machine are trusted, as the proxy is one of them.
    """

    def __init__(self, app: Any, listening: socket.socket, *, behind_proxy: bool = True) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            http=HttpProtocol,
            proxy_headers=behind_proxy,
            forwarded_allow_ips="127.0.0.1",
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
