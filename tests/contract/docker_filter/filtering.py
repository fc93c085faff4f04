"""The filter before the Docker socket as it is deployed, before a real daemon or before one that only listens."""

from __future__ import annotations

import json
import os
import re
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

from tests.contract.docker_filter.cases import ANOTHERS, DATA, INSTALLATION, OURS, SHARED
from tests.contract.harness.dockerd import SocketConnection

from commonage.engines.containers.docker_api import STREAMS

FILTER = Path(__file__).parents[3] / "deploy" / "docker-filter"
_UP_WITHIN_S = 20.0
NAMED = "commonage-0a1b2c3d4e5f6-1"
"""The name of a container of Commonage, whose id is OURS."""
EXEC, ANOTHERS_EXEC = "c" * 64, "d" * 64
_FILTERS_OWN = "docker-filter"
_VERSION = re.compile(r"^/v1\.[0-9]+(?=/)")


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
    """The error of a filter that does not start with these variables."""
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
    """Replaces the daemon: gives empty answers, and records the requests that it receives.

    Requests of the filter itself are marked as such; requests that it passes on never are.
    """

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Answers)
        self.received: list[tuple[str, str, bytes]] = []
        self.headers: list[Mapping[str, str]] = []
        self.asked: list[str] = []
        self.says: dict[str, str] = {}
        """Answers by path, without the API's version."""

    def received_since(self, count: int) -> list[str]:
        return [f"{method} {path}" for method, path, _ in self.received[count:]]


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Listener

    def address_string(self) -> str:
        return "filter"

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("User-Agent") != _FILTERS_OWN:
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.server.received.append((self.command, self.path, body))
        else:
            self.server.asked.append(f"{self.command} {self.path}")
        said = self.server.says.get(_VERSION.sub("", self.path.partition("?")[0]), "{}").encode()
        with suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    do_GET = do_POST = do_DELETE = do_PUT = do_HEAD = _answer


@contextmanager
def listener(path: Path) -> Iterator[Listener]:
    with Listener(path) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join(10)


@contextmanager
def daemon_with_objects(path: Path) -> Iterator[Listener]:
    """A listener that knows one object of Commonage and one of another owner of each kind, by the ids OURS and
    ANOTHERS.
    """
    with listener(path) as made:
        of_ours = {"commonage.installation": INSTALLATION}
        for name, object_id, labels in (
            (OURS, OURS, of_ours),
            (NAMED, OURS, of_ours),
            (ANOTHERS, ANOTHERS, {"app": "x"}),
        ):
            container = {"Id": object_id, "Config": {"Labels": labels}}
            made.says[f"/containers/{name}/json"] = json.dumps(container)
            made.says[f"/networks/{name}"] = json.dumps({"Id": object_id, "Labels": labels})
            for kind in ("services", "configs", "secrets"):
                about = {"ID": object_id, "Spec": {"Name": f"commonage-{kind}", "Labels": labels}}
                made.says[f"/{kind}/{name}"] = json.dumps(about)
        for name, object_id in ((EXEC, OURS), (ANOTHERS_EXEC, ANOTHERS)):
            made.says[f"/exec/{name}/json"] = json.dumps({"ID": name, "ContainerID": object_id})
        yield made


@contextmanager
def filter_of_a_site(daemon: Listener, folder: Path, engine: str = "swarm") -> Iterator[Path]:
    """The socket of a filter before this listener, with folders of each kind."""
    environment = {
        "COMMONAGE_ENGINE": engine,
        "COMMONAGE_DATA_DIR": DATA,
        "COMMONAGE_SHARED_DIR": SHARED,
        "COMMONAGE_MOUNTS": "/srv/datasets:/srv/projects/*/*:/srv/commonage/volumes/more",
    }
    with filter_before(Path(str(daemon.server_address)), folder, **environment) as made:
        yield made


def send(daemon: Listener, guard: Path, what: bytes, within_s: float = 60.0) -> tuple[int, list[str]]:
    """The status of the first answer (0 without one), and what the daemon heard."""
    before = len(daemon.received)
    said = say(guard, what, within_s)
    status = int(said.split(b" ", 2)[1]) if said.startswith(b"HTTP/") else 0
    return status, daemon.received_since(before)


def say(to: Path, what: bytes, within_s: float = 60.0) -> bytes:
    """The whole answer to exactly these bytes; empty if the connection is cut."""
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


def ask_through(guard: Path, method: str, path: str, body: object = None) -> tuple[int, str]:
    """One request through a filter before a real daemon: the status and what is said."""
    with closing(SocketConnection(str(guard))) as connection:
        content = b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
