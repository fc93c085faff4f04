"""A server to measure: started in a temporary folder on free ports, stopped and removed afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import BenchmarkError
from commonage.server.processes.ports import free_port
from commonage.wire.hub import API_PATH

READY_WITHIN_S = 120.0
# One user submits as much as many users would.
_NO_LIMITS = {
    "COMMONAGE_MAX_REQUESTS_PER_SECOND": "1000000",
    "COMMONAGE_MAX_WORKLOADS_PER_USER": "1000000",
    "COMMONAGE_MAX_WORKLOADS_PER_TENANT": "1000000",
    "COMMONAGE_MAX_SESSIONS_PER_USER": "10000",
    "COMMONAGE_MAX_STREAMS_PER_USER": "10000",
    "COMMONAGE_MAX_STREAMS": "10000",
}


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its address, an admin's token, its folder, and the process id of the control plane."""

    url: str
    token: str
    folder: Path
    pid: int

    @property
    def resident_mib(self) -> float:
        """Memory of the control plane's process, in MiB."""
        return resident_mib(self.pid)

    @property
    def cpu_s(self) -> float:
        """CPU time of the control plane's process so far, in seconds. Independent of other load on this machine."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """VmRSS of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def command() -> list[str]:
    """The command that runs `commonage` in this environment."""
    return [sys.executable, "-m", "commonage"]


class Installation:
    """A server in `folder`, on a free port, which can be stopped and started again. `variables` are added to its
    environment.
    """

    def __init__(self, folder: Path, *flags: str, variables: Mapping[str, str] | None = None) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        self._argv = [*command(), "up", "--data-dir", str(folder / "data"), "--port", port, *flags]
        self._environment = os.environ | _NO_LIMITS | dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._token = ""

    def start(self) -> None:
        """Returns when it answers. Raises BenchmarkError."""
        log = self.folder / "bench-server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=self._environment
            )
        _await_ready(self.url, self._process, log)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends its workloads too; SIGTERM leaves them for the next start."""
        if self._process is not None:
            _stop(self._process, how)

    def served(self) -> Served:
        """It, as it runs now, with a token of an admin. Raises BenchmarkError."""
        assert self._process is not None, "it was not started"
        self._token = self._token or _token(self.folder / "data")
        return Served(self.url, self._token, self.folder, self._process.pid)


@contextlib.contextmanager
def server(*flags: str, folder: Path | None = None, variables: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A server with an admin's token, ready to answer; stopped when the block ends.

    `variables` are added to its environment.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="commonage-bench-")))
        installation = Installation(folder, *flags, variables=variables)
        stack.callback(installation.stop)
        installation.start()
        yield installation.served()


def make_environment(served: Served) -> Path:
    """Make the environment `notebook` by running a job in it; returns its Python interpreter. Raises BenchmarkError."""
    argv = [*command(), "run", "--url", served.url, "--token", served.token, "--no-files"]
    argv += ["--env", "notebook", "--", "python", "-c", "import sys; print('python=' + sys.executable)"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=served.folder)
    found = [line.partition("=")[2] for line in done.stdout.splitlines() if line.startswith("python=")]
    if done.returncode != 0 or not found:
        raise BenchmarkError(f"cannot make the environment:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return Path(found[0])


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise BenchmarkError(f"the server ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(f"{url}{API_PATH}/health", timeout=5).status == 200:
                return
        time.sleep(0.1)
    raise BenchmarkError(f"the server was not ready within {READY_WITHIN_S:.0f} s:\n{log.read_text()[-2000:]}")


def _token(data: Path) -> str:
    argv = [*command(), "token", "--user", "admin", "--admin", "--json", "--data-dir", str(data)]
    made = subprocess.run(argv, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise BenchmarkError(f"cannot make a token: {made.stderr.strip()}")
    token: str = json.loads(made.stdout)["token"]
    return token


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is None:
        os.kill(process.pid, how)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
