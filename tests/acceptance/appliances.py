"""Appliances of acceptance tests: site agents, each in a network namespace that reaches the control plane alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.contract.harness.leftovers import SPACE, clear_leftovers, tag
from tests.contract.harness.made_once import share_environments

SUBNET = "10.99.255"
CONTROL_PLANE = f"{SUBNET}.1"
"""Address of the control plane for all appliances; it exists while one of them does."""


@dataclass
class Appliance:
    """The machine of a site. The number (0 to 60) gives it addresses of its own. `folder` is its disk.

    Nothing can be downloaded in the namespace: environments come from earlier tests, or from their cache of packages.
    """

    name: str
    number: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    space: str = field(init=False)

    def __post_init__(self) -> None:
        self.space = f"{SPACE}{tag()}-{self.number}"

    def connect(self) -> None:
        """Create the namespace and its one link, in an unused network: `SUBNET`.(4n+1) to .(4n+2)."""
        outer, inner = f"cmns{os.getpid() % 100000}a{self.number}", "eth0"
        here, there = f"{SUBNET}.{4 * self.number + 1}", f"{SUBNET}.{4 * self.number + 2}"
        _ip("netns", "add", self.space)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", self.space)
        _ip("address", "add", f"{here}/30", "dev", outer)
        _ip("link", "set", outer, "up")
        _ip("-n", self.space, "address", "add", f"{there}/30", "dev", inner)
        for device in ("lo", inner):
            _ip("-n", self.space, "link", "set", device, "up")
        if here != CONTROL_PLANE:
            _ip("-n", self.space, "route", "add", f"{CONTROL_PLANE}/32", "via", here)

    def cut(self) -> None:
        """Nothing that the appliance sends arrives any more, and no connection is closed."""
        _ip("-n", self.space, "route", "add", "blackhole", f"{CONTROL_PLANE}/32", "metric", "0", "table", "local")

    def restore(self) -> None:
        _ip("-n", self.space, "route", "del", "blackhole", f"{CONTROL_PLANE}/32", "table", "local")

    def commonage(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(*words), input=stdin, capture_output=True, text=True, check=False, timeout=120,
            cwd=self.folder, env=self._environment(),
        )  # fmt: skip

    def start(self) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command("site", "agent"),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment(),
                start_new_session=True,
            )

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def _command(self, *words: str) -> list[str]:
        enter = ["nsenter", f"--net=/run/netns/{self.space}", sys.executable, "-m", "commonage"]
        return [*enter, *words, "--data-dir", str(self.folder / "data")]

    def _environment(self) -> dict[str, str]:
        own = {"COMMONAGE_GPUS": "simulated:1x24GiB", "COMMONAGE_NODE_NAME": "dgx-1", "UV_OFFLINE": "1"}
        return {**os.environ, **own, "NO_COLOR": "1", "COLUMNS": "200"}


@contextlib.contextmanager
def appliances(folder: Path, *names: str) -> Iterator[list[Appliance]]:
    """Connected appliances, not joined yet. At the end they are stopped, with all that runs in their namespaces."""
    clear_leftovers()
    made: list[Appliance] = []
    try:
        for number, name in enumerate(names):
            place = folder / name
            place.mkdir()
            share_environments(place / "data")
            made.append(Appliance(name, number, place))
            made[-1].connect()
        yield made
    finally:
        for one in made:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.stop()
            for pid in subprocess.run(
                ["ip", "netns", "pids", one.space], capture_output=True, text=True, check=False
            ).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", one.space], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
