"""The installation under test: control plane, two appliances and a fault proxy before each, in namespaces of their own.

Every process, mount and listener in these namespaces belongs to the benchmark: what is left at the end is a leak.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from benchmarks.report import BenchmarkError
from benchmarks.server import command
from commonage.link.sites.credentials import SiteCredentials
from commonage.server.commands.site_join import FOLDER
from commonage.testing.fault_proxy import FaultProxy

API_PORT, JOIN_PORT, SITES_PORT = 8000, 8445, 8446  # this network has no other hosts
URL = f"http://127.0.0.1:{API_PORT}"
_CANNOT_START = 2
"""Exit code of `commonage up` and `commonage site agent`, with a message."""
_DISK_MIB = 400
_INSIDE = "FAULTS_BENCHMARK_INSIDE"
_STOP_WITHIN_S = 300
_QUIET = {
    "COMMONAGE_MAX_REQUESTS_PER_SECOND": "1000000",
    "COMMONAGE_MAX_WORKLOADS_PER_USER": "1000000",
    "COMMONAGE_MAX_WORKLOADS_PER_TENANT": "1000000",
    "COMMONAGE_MAX_STREAMS_PER_USER": "10000",
    "COMMONAGE_MAX_STREAMS": "10000",
}


def enter_namespaces(arguments: list[str]) -> int | None:
    """Run this command again in namespaces of its own, and return its exit code; None if this process is in them."""
    if os.environ.get(_INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return None
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    argv = ["unshare", *rights, "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    # The shell is process 1: it reaps what a killed process leaves behind.
    inner = ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "benchmarks", "faults", *arguments]
    try:
        return subprocess.run([*argv, *inner], env={**os.environ, _INSIDE: "yes"}, check=False).returncode
    except FileNotFoundError as error:
        raise BenchmarkError(f"{error.filename} is missing: install util-linux") from error


def processes() -> dict[int, str]:
    """The command of every process in these namespaces, but the benchmark's own."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (1, os.getpid()):
            with suppress(OSError):
                if command_line := (entry / "cmdline").read_bytes():  # none: it has ended
                    found[int(entry.name)] = command_line.replace(b"\0", b" ").decode(errors="replace")[:200]
    return found


def listeners(pid: int | str = "self") -> list[str]:
    """The addresses with a listener in the network namespace of this process, as HOST:PORT."""
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if state == "0A":
            host, port = local.split(":")
            found.append(f"{'.'.join(str(one) for one in reversed(bytes.fromhex(host)))}:{int(port, 16)}")
    return sorted(found)


class Network:
    """The network of an appliance: it has nothing in common with the control plane's but one line, at `gateway`."""

    def __init__(self, number: int) -> None:
        self.gateway, own = f"10.77.{number}.1", f"10.77.{number}.2"
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.pid = self._holder.pid
        while os.readlink(f"/proc/{self.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        here, there = f"site{number}", "uplink"
        for argv in (
            ["ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", str(self.pid)],
            ["ip", "address", "add", f"{self.gateway}/24", "dev", here],
            ["ip", "link", "set", here, "up"],
            [*self.inside(), "ip", "address", "add", f"{own}/24", "dev", there],
            [*self.inside(), "ip", "link", "set", there, "up"],
            [*self.inside(), "ip", "link", "set", "lo", "up"],
        ):
            subprocess.run(argv, check=True)

    def inside(self) -> list[str]:
        """Words before a command that runs in it."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net"]

    def remove(self) -> None:
        self._holder.kill()
        self._holder.wait()


@dataclass
class Server:
    """A process that is started, killed and started again. `data` is a small disk of its own."""

    name: str
    argv: list[str]
    data: Path
    log: Path
    variables: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    _started_at: float = 0.0
    _full_until: float = 0.0

    def start(self) -> None:
        self._started_at = time.monotonic()
        with self.log.open("ab") as log:
            environment = {**os.environ, **_QUIET, **self.variables}
            environment.pop(_INSIDE, None)
            self.process = subprocess.Popen(
                self.argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )

    async def end(self, how: signal.Signals) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            await asyncio.to_thread(self.process.wait, _STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"{self.name} did not stop within {_STOP_WITHIN_S} s:\n{self.tail()}") from None

    def check(self) -> None:
        """Raises BenchmarkError if it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            raise BenchmarkError(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")

    @property
    def descriptors(self) -> int:
        """Raises BenchmarkError if it has ended by itself."""
        assert self.process is not None
        self.check()
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def found_disk_full(self) -> bool:
        """Whether it ended because it cannot start on a full disk. The disk may have space again."""
        assert self.process is not None
        return self.process.returncode == _CANNOT_START and self._started_at <= self._full_until

    def tail(self, length: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-length:]

    def keep_logs(self) -> None:
        """Copy the logs on its disk, which is lost with the namespaces, to a folder next to `log`."""
        with suppress(OSError):  # it has none yet, or one was rotated meanwhile
            shutil.copytree(self.data / "logs", self.log.with_suffix(".logs"), dirs_exist_ok=True)

    # --- its disk -------------------------------------------------------------------------------------------------

    async def keep_full(self) -> None:
        """Take each byte of its disk, also those that are freed meanwhile, until cancelled."""
        balloon, self._full_until = self.data / "balloon", math.inf
        try:
            with balloon.open("ab", buffering=0) as file:
                while True:
                    await asyncio.to_thread(_fill, file.fileno())
                    await asyncio.sleep(0.05)
        finally:
            balloon.unlink()
            self._full_until = time.monotonic()


def _fill(descriptor: int) -> None:
    for size in (1024 * 1024, 4096, 1):
        with suppress(OSError):
            while True:
                os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, size)


@dataclass
class Place:
    """`lines` are the proxies by which the sites reach the control plane."""

    folder: Path
    control: Server
    agents: dict[str, Server] = field(default_factory=dict)
    lines: dict[str, FaultProxy] = field(default_factory=dict)
    networks: dict[str, Network] = field(default_factory=dict)
    token: str = ""

    def server(self, target: str) -> Server:
        return self.agents.get(target, self.control)

    def listeners(self) -> list[str]:
        """In all networks."""
        networks = (listeners(one.pid) for one in self.networks.values())
        return [*listeners(), *chain.from_iterable(networks)]

    @property
    def servers(self) -> list[Server]:
        return [self.control, *self.agents.values()]

    async def run(self, *arguments: str, stdin: str = "", variables: Mapping[str, str] | None = None) -> str:
        """A command of Commonage; what it prints. Raises BenchmarkError if it fails."""
        ran = await asyncio.to_thread(
            subprocess.run,
            [*command(), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COMMONAGE_URL": URL, "COMMONAGE_TOKEN": self.token, **(variables or {})},
        )
        if ran.returncode:
            raise BenchmarkError(f"commonage {' '.join(arguments)}: {ran.stderr or ran.stdout}")
        return ran.stdout.strip()

    async def join(self, site: str) -> None:
        """Let a new appliance join as this site, and start its agent."""
        data = _disk(self.folder / site)
        made = json.loads(await self.run("site", "token", site, "--json"))["token"]
        address = f"127.0.0.1:{JOIN_PORT}"
        await self.run("site", "join", address, "--token-file", "-", "--data-dir", str(data), stdin=made)
        network = self.networks[site] = Network(len(self.networks))
        line = self.lines[site] = FaultProxy(SITES_PORT, network.gateway)
        await line.open()
        credentials = SiteCredentials(data / FOLDER)
        credentials.keep(replace(credentials.identity(), addresses=(f"{network.gateway}:{line.port}",)))
        variables = {
            "COMMONAGE_ENGINE": "process",
            "COMMONAGE_GPUS": "simulated:1x24GiB",
            "COMMONAGE_NODE_NAME": f"{site}-1",
            "COMMONAGE_NODE_LABELS": "place=appliance",
            "COMMONAGE_CPUS": "4",
        }
        argv = [*network.inside(), *command(), "site", "agent", "--data-dir", str(data)]
        agent = self.agents[site] = Server(f"the agent of {site}", argv, data, self.folder / f"{site}.log", variables)
        agent.start()


def new_place(folder: Path) -> Place:
    data = _disk(folder / "control")
    argv = [*command(), "up", "--data-dir", str(data), "--port", str(API_PORT), "--gpus", "none"]
    variables = {
        "COMMONAGE_SITE_ADDRESS": "127.0.0.1",
        "COMMONAGE_SITES_BIND": "127.0.0.1",
        "COMMONAGE_SITES_PORT": str(SITES_PORT),
        "COMMONAGE_JOINING_BIND": "127.0.0.1",
        "COMMONAGE_JOINING_PORT": str(JOIN_PORT),
    }
    (folder / "journal").mkdir()
    return Place(folder, Server("the control plane", argv, data, folder / "control.log", variables))


def _disk(folder: Path) -> Path:
    """A new folder on a small disk of its own. What is large and never changes lies elsewhere."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise BenchmarkError(f"cannot mount a small disk: {made.stderr.strip()}. Run this as root")
    environments = folder.with_name(f"{folder.name}-environments")
    environments.mkdir()
    (folder / "environments").symlink_to(environments)
    return folder


async def until(reached: Callable[[], bool], what: str, within_s: float, *servers: Server) -> None:
    """Raises BenchmarkError after this time, or if one of the servers has ended."""
    give_up = time.monotonic() + within_s
    while not reached():
        for server in servers:
            server.check()
        if time.monotonic() > give_up:
            raise BenchmarkError(f"{what}: not within {within_s:.0f} s")
        await asyncio.sleep(0.1)


def remove(folder: Path) -> None:
    """The small disks go with the namespaces."""
    shutil.rmtree(folder, ignore_errors=True)
