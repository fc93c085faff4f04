"""An appliance whose engine is Kubernetes, on this machine, and a walk through it. Its line can be cut and restored."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from tests.acceptance.kernel import by_number
from tests.acceptance.served import Served, served
from tests.fakes.waiting import wait_until

from commonage.link.forwarding import Forwarder
from commonage.server.processes.ports import free_port
from commonage.wire.hub import API_PATH

NAME = "clinic"
LINE = "127.0.0.9"
"""Address of the control plane for the appliance; `Line` leads from there to the real one."""
_WITHIN_S = 180.0
_FETCH = (
    f'set -- "$PLATFORM{API_PATH}/health"; echo "$1"; wget -qO- "$1" || '
    'python3 -c "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read())" "$1"'
)
_SERVE = (
    'cd "$(mktemp -d)"; echo hello >index.html; '
    'python3 -m http.server --bind 0.0.0.0 "$COMMONAGE_PORT" || httpd -f -p "$COMMONAGE_PORT"'
)
_COUNTS = "for i in $(seq 40); do echo line $i; sleep 0.5; done"


class Loop:
    """An event loop in a thread, for what must go on while a test waits."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


@dataclass
class Line:
    """The way from the appliance to the ports of the control plane."""

    loop: Loop
    ports: tuple[int, ...]
    _forwarders: list[Forwarder] = field(default_factory=list)

    async def _open(self) -> None:
        for port in self.ports:
            forwarder = Forwarder("line", lambda port=port: asyncio.open_connection("127.0.0.1", port))
            await forwarder.listen(LINE, port, lambda _: True)
            self._forwarders.append(forwarder)

    async def _close(self) -> None:
        for forwarder in self._forwarders:
            forwarder.close()
        self._forwarders.clear()

    def restore(self) -> None:
        self.loop.run(self._open())

    def cut(self) -> None:
        """Close all connections, and accept no more."""
        self.loop.run(self._close())


@dataclass
class ClusterAppliance:
    """`variables`: the settings of its engine."""

    folder: Path
    variables: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    def commonage(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(*words), input=stdin, capture_output=True, text=True, check=False, timeout=120,
            env=self._environment(),
        )  # fmt: skip

    def start(self) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command("site", "agent"), stdout=log, stderr=log, env=self._environment(), start_new_session=True
            )

    def end(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(60)

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "commonage", *words, "--data-dir", str(self.folder / "data")]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables, "COMMONAGE_ENGINE": "kubernetes", "NO_COLOR": "1"}


@dataclass
class Joined:
    """A control plane with plain processes, and the appliance that has joined it."""

    platform: Served
    appliance: ClusterAppliance
    line: Line
    control_port: int

    def run(self, *words: str) -> str:
        """The output of `commonage run` on the appliance, which must succeed."""
        done = self.platform.cli(
            "run", "--no-files", "--env", "shell", "--on", f"site={NAME}", "--cpus", "0.1", "--mem", "64MiB", *words,
            token=self.platform.token("ann"),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextlib.contextmanager
def joined(folder: Path, loop: Loop, image: str, variables: Mapping[str, str]) -> Iterator[Joined]:
    control, joining, sites = free_port(), free_port(), free_port()
    line = Line(loop, (joining, sites))
    settings = {
        "COMMONAGE_SITE_ADDRESS": LINE,
        "COMMONAGE_JOINING_BIND": "127.0.0.1",
        "COMMONAGE_JOINING_PORT": str(joining),
        "COMMONAGE_SITES_BIND": "127.0.0.1",
        "COMMONAGE_SITES_PORT": str(sites),
        "COMMONAGE_CONTROL_PORT": str(control),
        "COMMONAGE_GPUS": "none",
    }
    (folder / "appliance").mkdir()
    appliance = ClusterAppliance(folder / "appliance", variables)
    line.restore()
    with served(folder, variables=settings) as platform:
        admin = platform.token("admin", "--admin")
        (folder / "shell.commonage.yml").write_text(f"kind: Environment\nname: shell\nimage: {image}\n")
        applied = platform.cli("apply", "--yes", "shell.commonage.yml", token=admin)
        assert applied.returncode == 0, applied.stdout + applied.stderr
        token = platform.cli("site", "token", NAME, token=admin)
        assert token.returncode == 0, token.stderr
        done = appliance.commonage("site", "join", "--token-file", "-", stdin=token.stdout.splitlines()[-1])
        assert done.returncode == 0, done.stderr
        appliance.start()
        try:
            client = platform.client("admin", "--admin")
            wait_until(
                lambda: NAME in {node.site for node in client.nodes()}, "the nodes of the cluster", within_s=_WITHIN_S
            )
            yield Joined(platform, appliance, line, control)
        finally:
            if appliance.process is not None and appliance.process.poll() is None:
                appliance.end(signal.SIGTERM)
            line.cut()


def walk_job(site: Joined) -> None:
    assert site.run("--", "sh", "-c", "echo from $((6 * 7))").splitlines()[-1] == "from 42"
    [job] = site.platform.client("ann").workloads(owner="ann")
    assert (job.site, job.state) == (NAME, "succeeded")
    client = site.platform.client("ann")
    assert [line.text for line in client.logs(job.id)] == ["from 42"]


def walk_way_back(site: Joined, address: str) -> None:
    """A Pod reaches the API of the control plane by the link: its loopback is `address` for Pods."""
    variable = f"PLATFORM=http://127.0.0.1:{site.control_port}"
    said = site.run("--var", variable, "--", "sh", "-c", _FETCH)
    assert f"http://{address}:{site.control_port}" in said
    assert "status" in said


def walk_service(site: Joined, port: int) -> None:
    """A service is opened through the tunnel."""
    words = ("--detach", "--service", "--port", str(port), "--health-interval", "1s", "--", "sh", "-c", _SERVE)
    service = site.run(*words).split()[0]
    client = site.platform.client("ann")
    wait_until(lambda: client.workload(service).health == "ready", "the service", within_s=_WITHIN_S)
    plain, host = by_number(client.workload(service).url or "")
    headers = {**host, "Authorization": f"token {site.platform.token('ann')}"}
    assert httpx2.get(f"{plain}index.html", headers=headers, timeout=60).text == "hello\n"
    client.stop(service)
    wait_until(lambda: client.workload(service).state == "stopped", "the stop", within_s=_WITHIN_S)


def walk_cut(site: Joined) -> None:
    """A job goes on while the line is cut, and while the agent is down; it runs once, with all its lines."""
    client = site.platform.client("ann")
    job = site.run("--detach", "--", "sh", "-c", _COUNTS).split()[0]
    wait_until(lambda: client.workload(job).state == "running", "the job", within_s=_WITHIN_S)
    site.line.cut()
    admin = site.platform.client("admin", "--admin")
    wait_until(
        lambda: {one.state for one in admin.nodes() if one.site == NAME} == {"lost"},
        "the cut is seen",
        within_s=_WITHIN_S,
    )
    site.appliance.end(signal.SIGKILL)
    site.appliance.start()
    site.line.restore()
    finished = client.wait(job)
    assert finished.state == "succeeded"
    assert [line.text for line in client.logs(job)] == [f"line {number}" for number in range(1, 41)]
    assert len(client.attempts(job)) == 1
