"""A git server on the loopback, and repositories on it with a work tree, as a person has it."""

from __future__ import annotations

import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.waiting import wait_until

from commonage.server.processes.ports import free_port


@dataclass
class PushedRepository:
    """`url` is its address on the server."""

    work: Path
    bare: Path
    url: str

    def git(self, *arguments: str) -> str:
        person = ["-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *person, *arguments], cwd=self.work, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def make_tree(self, entries: Iterable[str]) -> str:
        """Write a tree with these lines, as `git ls-tree` shows them; return its id."""
        given = "".join(f"{one}\n" for one in entries)
        done = subprocess.run(["git", "mktree"], cwd=self.work, input=given, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def push(self, files: Mapping[str, str | bytes | None], *, force: bool = False) -> str:
        """Commit files (None: deleted) and push; return the commit. `force`: in place of all commits before."""
        for name, content in files.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        if force:
            self.git("checkout", "--quiet", "--orphan", "other")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "change")
        if force:
            self.git("branch", "--quiet", "-D", "main")
            self.git("branch", "-m", "main")
        self.git("push", "--quiet", "--force", "origin", "main")
        return self.git("rev-parse", "HEAD")


class GitServer:
    """`git daemon`, which serves all repositories in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def repository(self, name: str) -> PushedRepository:
        bare, work = self.folder / f"{name}.git", self.folder / f"{name}-work"
        subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", bare], check=True)
        subprocess.run(["git", "init", "--quiet", "--initial-branch=main", work], check=True)
        made = PushedRepository(work, bare, f"git://127.0.0.1:{self.port}/{name}.git")
        made.git("remote", "add", "origin", str(bare))
        return made

    def start(self) -> None:
        where = ("--listen=127.0.0.1", f"--port={self.port}", f"--base-path={self.folder}")
        self._process = subprocess.Popen(
            ["git", "daemon", "--export-all", "--reuseaddr", "--informative-errors", *where],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(self._answers)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def git_server(folder: Path) -> Iterator[GitServer]:
    folder.mkdir()
    server = GitServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Stalling:
    """Forwards connections to the server, and stops in the middle of an answer of more than `passes` bytes until
    `release`. `url` has its own port.
    """

    def __init__(self, port: int, passes: int) -> None:
        self.stalled, self.released = threading.Event(), threading.Event()
        stalling = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", port)) as server:
                    asking = threading.Thread(target=_forward, args=(self.request, server), daemon=True)
                    asking.start()
                    with suppress(OSError):
                        stalling._answer(server, self.request, passes)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.port: int = self._server.server_address[1]

    def url(self, repository: PushedRepository) -> str:
        return f"git://127.0.0.1:{self.port}/{repository.bare.name}"

    def release(self) -> None:
        self.released.set()

    def close(self) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, server: socket.socket, client: socket.socket, passes: int) -> None:
        while part := server.recv(min(passes, 65536) if passes else 65536):
            client.sendall(part)
            if passes:
                passes -= len(part)
                if not passes:
                    self.stalled.set()
                    self.released.wait()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def stalling(server: GitServer, passes: int) -> Iterator[Stalling]:
    made = Stalling(server.port, passes)
    try:
        yield made
    finally:
        made.close()
