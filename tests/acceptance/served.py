"""A whole installation under test: `commonage up` as its user starts it, on free ports, in a folder of its own."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from tests.contract.harness.made_once import share_environments

from commonage.sdk import Client
from commonage.server.commands.server import USER_SCOPES
from commonage.server.data_dir import running_server
from commonage.server.identity import HubIdentity
from commonage.server.processes.ports import free_port  # none that the kernel gives to others meanwhile
from commonage.server.secrets import load_secrets
from commonage.wire.hub import API_PATH

ADMIN_PASSWORD = "a-long-password-for-the-admin-of-tests-only"  # 32 or more, the hub's own rule
USERS_PASSWORD = "a-password-for-users"


@dataclass
class Served:
    """One installation. `start()`, `kill()` and `stop()` may follow each other; the folder stays.

    `before` are words before its commands, for a network namespace; `variables` are settings that have no flag. Its
    environments are those of all installations under test, which saves minutes, unless it is to build them itself.
    """

    folder: Path
    flags: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    builds_environments: bool = False
    process: subprocess.Popen[bytes] | None = None
    earlier_output: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def output(self) -> str:
        return (self.folder / "up.log").read_text(errors="replace")

    def start(self) -> "Served":
        passwords = self.folder / "passwords"
        passwords.write_text(f"admin={ADMIN_PASSWORD}\nusers={USERS_PASSWORD}\n")
        passwords.chmod(0o600)
        if not self.data.exists() and not self.builds_environments:
            share_environments(self.data)
        argv = [*self.before, sys.executable, "-m", "commonage", "up"]
        argv += ["--data-dir", str(self.data), "--port", str(self.port)]
        with (self.folder / "up.log").open("ab") as log:
            self.earlier_output = self.output
            self.process = subprocess.Popen(
                [*argv, "--password-file", str(passwords), *self.flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
                env={**os.environ, **self.variables},
            )
        self.await_ready()
        return self

    def await_ready(self, within_s: float = 240) -> None:
        give_up = time.monotonic() + within_s
        while time.monotonic() < give_up:
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.output[-3000:]}")
            with contextlib.suppress(httpx2.HTTPError):
                paths = (f"{API_PATH}/health", "/hub/health")
                # The hub answers a moment before its routes are there; the server says that it is ready after both.
                is_said = " is ready after " in self.output.removeprefix(self.earlier_output)
                if is_said and all(httpx2.get(f"{self.url}{path}", timeout=5).status_code == 200 for path in paths):
                    return
            time.sleep(0.1)
        raise AssertionError(f"the server was not ready within {within_s} s:\n{self.output[-3000:]}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(60)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def cli(
        self, *arguments: str, token: str | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            **self.variables,
            "COMMONAGE_URL": self.url,
            "HOME": str(self.folder),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        if token:
            environment["COMMONAGE_TOKEN"] = token
        argv = [*self.before, sys.executable, "-m", "commonage", *arguments]
        return subprocess.run(
            argv, env=environment, capture_output=True, text=True, check=False, timeout=300, cwd=cwd or self.folder
        )

    def token(self, user: str, *flags: str) -> str:
        """A token for `user`, made on the node itself, as `commonage token` makes it."""
        if flags or self.before:
            made = self.cli("token", "--user", user, "--data-dir", str(self.data), *flags)
            assert made.returncode == 0, made.stderr
            return made.stdout.strip().splitlines()[-1]
        with ThreadPoolExecutor(1) as pool:  # the test may run in an event loop; a command takes a second to start
            return pool.submit(asyncio.run, self._mint(user)).result()

    async def _mint(self, user: str) -> str:
        running = running_server(self.data)
        assert running is not None, self.output[-3000:]
        identity = HubIdentity(running.hub_url, load_secrets(self.data).hub_service_token)
        try:
            await identity.ensure_user(user)
            return (await identity.mint_token(user, USER_SCOPES, "made by a test", None)).text
        finally:
            await identity.aclose()

    def client(self, user: str, *flags: str) -> Client:
        return Client(self.url, self.token(user, *flags))

    def hub(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """A call of the hub's API as the service that the control plane is."""
        token = (self.data / "secrets" / "hub_service_token").read_text().strip()
        headers = {"Authorization": f"token {token}"}
        return httpx2.request(method, f"{self.url}/hub/api{path}", headers=headers, timeout=30, **options)

    def processes(self) -> list[int]:
        """Every process that belongs to this installation: it has the folder's name in its command or environment."""
        return processes_of(self.folder)


def processes_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            told = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
            if str(folder).encode() in told and b"pytest" not in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@contextlib.contextmanager
def served(folder: Path, *flags: str, **fields: Any) -> Iterator[Served]:
    installation = Served(folder, flags, **fields)
    try:
        yield installation.start()
    finally:
        if installation.process is not None and installation.process.poll() is None:
            installation.stop()
        for pid in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
