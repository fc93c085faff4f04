"""The filter before the Docker socket as it is deployed, before a real daemon or before one that only listens."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from commonage.engines.containers.exec_api import STREAMS

FILTER = Path(__file__).parents[2] / "deploy" / "docker-filter"
_UP_WITHIN_S = 20.0


@contextmanager
def filter_before(daemon: Path, folder: Path, **environment: str) -> Iterator[Path]:
    """The socket of a filter before this one. Its files are in `folder`, as a test may write there."""
    process = _started(daemon, folder, environment)
    try:
        deadline = time.monotonic() + _UP_WITHIN_S
        while not (folder / f"docker{STREAMS}").exists() or not (folder / "docker.sock").exists():
            assert process.poll() is None, "the filter ended"
            assert time.monotonic() < deadline, "the filter does not listen"
            time.sleep(0.05)
        yield folder / "docker.sock"
    finally:
        process.terminate()
        process.wait(20)


def why_no_filter(folder: Path, **environment: str) -> str:
    """What a filter that is told this says before it ends."""
    process = _started(folder / "no.sock", folder, environment, stderr=subprocess.PIPE)
    try:
        _, said = process.communicate(timeout=_UP_WITHIN_S)
    finally:
        process.kill()
    assert process.returncode not in (0, None)
    return str(said.decode())


def _started(daemon: Path, folder: Path, environment: Mapping[str, str], **how: Any) -> subprocess.Popen[bytes]:
    for one in FILTER.iterdir():
        text = one.read_text(encoding="utf-8")
        text = text.replace("/etc/commonage", str(folder)).replace("/run/docker-filter", str(folder))
        (folder / one.name).write_text(text.replace("127.0.0.1:8404", f"unix@{folder}/health.sock"), encoding="utf-8")
    told = {**os.environ, "DAEMON": str(daemon), "FOLDER": str(folder), **environment}
    return subprocess.Popen(["sh", str(folder / "docker-filter-start")], env=told, **how)


class Listener(ThreadingMixIn, UnixStreamServer):
    """In the daemon's place: answers everything with nothing, and writes down what it was asked."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Answers)
        self.heard: list[tuple[str, str, bytes]] = []
        self.says: dict[str, str] = {}

    def heard_since(self, count: int) -> list[str]:
        """The requests after the first `count`, but for the filter's own looks whether somebody listens."""
        return [f"{method} {path}" for method, path, _ in self.heard[count:]]


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Listener

    def address_string(self) -> str:
        return "filter"

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.heard.append((self.command, self.path, body))
        said = self.server.says.get(self.path.partition("?")[0], "{}").encode()
        with suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    do_GET = do_POST = do_DELETE = do_PUT = do_HEAD = _answer


@contextmanager
def listener(path: Path) -> Iterator[Listener]:
    """One at this socket."""
    with Listener(path) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join(10)


def say(to: Path, what: bytes, within_s: float = 10.0) -> bytes:
    """All that is answered to these very bytes; nothing where the connection is cut."""
    found = b""
    with closing(socket.socket(socket.AF_UNIX)) as plug:
        plug.settimeout(within_s)
        plug.connect(str(to))
        # Who refuses need not read to the end: what it answered before it hung up is there to be read.
        with suppress(OSError):
            plug.sendall(what)
            plug.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while part := plug.recv(65536):
                found += part
    return found


def request(head: str, body: bytes = b"", *lines: str) -> bytes:
    """A request as a decent client writes it, with further lines in its head."""
    about = ["Host: docker", "Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([f"{head} HTTP/1.1", *about, *lines, "", ""]).encode() + body
