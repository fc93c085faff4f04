"""Serving the API and the portal from inside our own event loop: uvicorn without its signals and its own log.

Made by the bootstrap. What is served is `api` and `portal`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from commonage.server.websockets import websocket_protocol

_LAST_ANSWERS_S = 1  # live streams last for ever; at the end they are cut off after this long


class _Quiet(uvicorn.Server):
    """Signals are the server's main's to handle."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class Web:
    """Serves `app` on a bound socket between `start` and `stop`."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            http="httptools",
            ws=websocket_protocol,  # type: ignore[arg-type]  # it calls it, whatever it is
            # The proxy before us is on this machine, and says for whom it asks.
            proxy_headers=True,
            forwarded_allow_ips="127.0.0.1",
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
            # Longer than the proxy keeps an idle connection (90 s): else it may ask on one that we are just closing.
            timeout_keep_alive=120,
        )
        self._server = _Quiet(config)
        self._socket = listening
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Serve from now on; what is asked before waits in the socket. The task ends when serving does."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="web")
        return self._task

    async def stop(self) -> None:
        """Answer what was asked, cut off streams, close."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait({self._task})
        self._socket.close()
