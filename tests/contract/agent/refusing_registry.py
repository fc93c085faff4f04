"""A test registry that refuses every request, in one of the ways in which registries refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

ACCOUNT = "account"
"""The token server does not know the account, and answers with Commonage's message."""
DENIED = "denied"
"""A token is given out, which does not allow this repository."""
BASIC = "basic"
"""A name and a password are wanted, and none was sent."""


class _Server(ThreadingHTTPServer):
    def __init__(self, way: str) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.way, self.at = way, f"127.0.0.1:{self.server_port}"


class _Asked(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        at, way = self.server.at, self.server.way
        if self.path.startswith("/token"):
            if way == ACCOUNT:
                self._say(401, {"code": "unauthenticated", "details": "this is no account of a node"})
            else:
                self._say(200, {"token": "x", "expires_in": 300})
        elif way == DENIED and "Authorization" in self.headers:
            self._say(403, {"errors": [{"code": "DENIED", "message": "requested access to the resource is denied"}]})
        else:
            challenge = 'Basic realm="r"' if way == BASIC else f'Bearer realm="http://{at}/token",service="{at}"'
            self._say(401, {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}, challenge)

    do_HEAD = do_GET

    def _say(self, status: int, body: object, challenge: str = "") -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def refusing(way: str) -> Iterator[str]:
    """One at `127.0.0.1:PORT`, which daemons speak to without TLS."""
    server = _Server(way)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.at
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
