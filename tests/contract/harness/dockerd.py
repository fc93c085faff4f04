"""A Docker daemon of the tests' own, and an image for it that is made of this very node, without any registry."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cache
from http.client import HTTPConnection, HTTPException
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.contract.harness.leftovers import FOLDER, clear_leftovers, tag, unmount_below

IMAGE = "commonage-test:1"
NO_RULES = "--iptables=false"
"""For a daemon in this machine's own network: a daemon that creates packet rules first removes those of all other
daemons, including the firewall between tenants that tests of another worker check.
"""
_PROGRAMS = (
    *("sh", "bash", "sleep", "cat", "ls", "mkdir", "touch", "id", "setsid", "stty", "env", "rm", "mount", "chmod"),
    *("ln", "timeout", "grep", "tr"),
)
_UP_WITHIN_S = 60


class Dockerd:
    """One daemon with all its files in a folder of its own. `before`: a command that in the end becomes the daemon."""

    def __init__(self, folder: Path, *arguments: str, before: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.url = f"unix://{self.socket}"
        self._arguments = arguments
        self._before = before
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.folder / "pid").unlink(missing_ok=True)
        command = [*self._before, "dockerd", "--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        # No default bridge: several daemons of one node would share it.
        command += ["--pidfile", f"{self.folder}/pid", "--host", self.url, "--bridge", "none", *self._arguments]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + _UP_WITHIN_S
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the daemon does not come up"
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            self.ask("GET", "/_ping")
        except (OSError, HTTPException):
            return False
        return True

    def kill(self) -> None:
        """As kill -9 does: its containers continue."""
        assert self._process is not None
        containerd = Path("/proc", (self.folder / "exec/containerd/containerd.pid").read_text())
        self._process.kill()
        self._process.wait()
        # Its containerd dies with it. A new daemon that starts too soon would consider it alive, and wait for it
        # forever.
        deadline = time.monotonic() + _UP_WITHIN_S
        while containerd.exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def restart_with(self, *arguments: str) -> None:
        """Have it run with these arguments. What runs in it may end."""
        self._arguments = arguments
        self.kill()
        self.start()

    def stop(self) -> None:
        """Have it end, and all its containers with it. One that does not answer ends all the same."""
        if self._process is None or self._process.poll() is not None:
            return
        with suppress(OSError, HTTPException, RuntimeError):
            self.remove_containers()
            # The bridges would outlive it.
            self.remove_networks("commonage.tenant")
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        """Stop it, and remove its files. One that was killed has left mounts behind."""
        self.stop()
        unmount_below(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, method: str, path: str, body: object = None, content: bytes | None = None) -> Any:
        """One request to its API, by a client that is not the engine's; JSON where it answers JSON.

        Raises RuntimeError for what it refuses, OSError while it does not answer.
        """
        connection = SocketConnection(str(self.socket))
        with closing(connection):
            data = content if content is not None else None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {text!r}")
        return json.loads(text) if text.startswith((b"{", b"[")) else text

    def pulls(self, since: float) -> int:
        """How many images it has fetched since then (unix seconds)."""
        filters = quote(json.dumps({"type": ["image"], "event": ["pull"]}))
        connection = SocketConnection(str(self.socket))
        with closing(connection):
            connection.request("GET", f"/events?since={since:.9f}&until={time.time():.9f}&filters={filters}")
            return len(connection.getresponse().read().splitlines())

    def remove_containers(self) -> None:
        """All of them, at once. One that went meanwhile is no error."""

        def remove(container: Any) -> None:
            with suppress(RuntimeError):
                self.ask("DELETE", f"/containers/{container['Id']}?force=1&v=1")

        with ThreadPoolExecutor() as at_once:
            list(at_once.map(remove, self.containers()))

    def remove_networks(self, label: str) -> None:
        for network in self.ask("GET", f"/networks?filters={quote(json.dumps({'label': [label]}))}"):
            with suppress(RuntimeError):
                self.ask("DELETE", f"/networks/{network['Id']}")

    def containers(self, **filters: list[str]) -> list[Any]:
        return list(self.ask("GET", f"/containers/json?all=1&filters={quote(json.dumps(filters))}"))


class SocketConnection(HTTPConnection):
    """HTTP over a socket of this machine."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def new_folder() -> Path:
    """A folder short enough for the path of a socket in it, of this run. What killed runs have left goes first."""
    clear_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{tag()}-", dir="/tmp"))
    folder.chmod(0o711)  # a daemon that maps users has its files belong to them
    return folder


@contextmanager
def dockerd_with_image(*arguments: str, before: tuple[str, ...] = (), rules: bool = False) -> Iterator[Dockerd]:
    """A daemon with the test image. `rules`: with firewall between networks; one test file at a time may have those."""
    daemon = Dockerd(new_folder(), *([] if rules else [NO_RULES]), *arguments, before=before)
    try:
        daemon.start()
        daemon.ask("POST", "/images/create?fromSrc=-&repo=commonage-test&tag=1", content=minimal_image())
        yield daemon
    finally:
        daemon.remove()


@cache
def minimal_image(python: bool = True) -> bytes:
    """A tar of a shell, some programs and this Python, each with the libraries it is linked to. Three seconds, once."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        put: set[str] = set()
        for name in _PROGRAMS:
            found = shutil.which(name, path="/usr/bin:/bin")
            assert found is not None, f"{name} is missing on this machine"
            _put(archive, put, os.path.realpath(found), f"/usr/bin/{name}")
        if python:
            _put_python(archive, put)
        for link in ("bin", "sbin"):
            _link(archive, link, "usr/bin")
        for folder in ("tmp", "etc", "proc", "sys", "dev", "home"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(info)
    return buffer.getvalue()


def _put_python(archive: tarfile.TarFile, put: set[str]) -> None:
    """Enough of this Python for sockets and HTTP."""
    binary = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    _put(archive, put, binary, binary)
    _link(archive, "usr/bin/python3", binary)
    library = Path(sysconfig.get_path("stdlib"))
    unwanted = ("test", "idlelib", "site-packages", "dist-packages", "__pycache__", "ensurepip", "lib2to3", "tkinter")

    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if Path(info.name).name in unwanted or "/config-" in info.name else info

    archive.add(library, str(library), filter=wanted)
    for module in (library / "lib-dynload").glob("*.so"):
        for path in libraries_of(str(module)):
            _put_file(archive, put, os.path.realpath(path), path)


def _put(archive: tarfile.TarFile, put: set[str], source: str, name: str) -> None:
    _put_file(archive, put, source, name)
    for path in libraries_of(source):
        _put_file(archive, put, os.path.realpath(path), path)


def _put_file(archive: tarfile.TarFile, put: set[str], source: str, name: str) -> None:
    if name not in put:
        put.add(name)
        archive.add(source, name)


def libraries_of(program: str) -> list[str]:
    """The paths of the libraries that it is linked to."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [word for word in listed.split() if word.startswith("/")]


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    archive.addfile(info)
