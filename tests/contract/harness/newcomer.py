"""The base of test nodes that join: an admin, a package mirror inside, and access by ssh."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

from tests.contract.harness.dockerd import new_folder
from tests.contract.harness.swarm import Swarm

ADMIN = "admin"
MIRROR = "/srv/mirror"
"""A flat mirror inside, with what is not installed."""

FURNISH = (
    f"admin={ADMIN} mirror={MIRROR}"
    + r"""
export DEBIAN_FRONTEND=noninteractive DPKG_FORCE=unsafe-io

let_in() {
  useradd --create-home --shell /bin/sh "$admin"
  echo "$admin ALL=(ALL) NOPASSWD: ALL" >"/etc/sudoers.d/$admin"
  for home in /root "/home/$admin"; do
    mkdir -p -m 700 "$home/.ssh"
    echo "$1" >"$home/.ssh/authorized_keys"
  done
  chown -R "$admin:" "/home/$admin"
  # Signing in must not wait for a name server that is not there, or for who counts sessions.
  printf 'UseDNS no\nUsePAM no\nStrictModes no\n' >>/etc/ssh/sshd_config
}

list_mirror() {
  cd "$mirror"
  for deb in *.deb; do
    dpkg-deb --field "$deb"
    echo "Filename: ./$deb"
    echo "Size: $(stat --format=%s "$deb")"
    echo "SHA256: $(sha256sum "$deb" | cut -d ' ' -f 1)"
    echo
  done >Packages
}
"""
)
"""Functions of the shell that furnishes such a node: `let_in KEY`, and `list_mirror` once its packages are there."""


def new_key(file: Path) -> str:
    """Have a key pair there that lets in; the public one."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    return file.with_suffix(".pub").read_text().strip()


class Newcomer(ABC):
    """A node with an sshd at a Swarm's switch, with the address 10.98.0.`number`; it reaches nothing else.

    `key` lets in root and the admin.
    """

    up_within_s: float

    def __init__(self, swarm: Swarm, name: str, number: int, key: Path) -> None:
        self.name, self.address, self.key = name, f"10.98.0.{number}", key
        self.switch = swarm.manager.space.rpartition("-")[0]
        self.folder = new_folder()
        self._neighbour = swarm.manager.inside()
        self._program: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _switch_on(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """In a session of its own."""

    @property
    def console(self) -> str:
        """The last of what it shows."""
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def start(self) -> None:
        """Switch it on, and wait until its sshd answers."""
        with open(self.folder / "log", "ab") as log:
            self._program = self._switch_on(log)
        self.await_up()

    def await_up(self, other_than: str = "") -> str:
        """Wait until its sshd answers, after another start than this one; the id of its start."""
        assert self._program is not None
        deadline = time.monotonic() + self.up_within_s
        while (boot := self.ssh("cat /proc/sys/kernel/random/boot_id").stdout.strip()) in ("", other_than):
            assert self._program.poll() is None, self.console
            assert time.monotonic() < deadline, f"its sshd does not answer: {self.console}"
            time.sleep(0.2)
        return boot

    @property
    def ssh_config(self) -> Path:
        """A file for `ssh -F`, with the key, and with who is known."""
        path = self.folder / "ssh_config"
        lines = (
            f"Host {self.address}",
            f"  IdentityFile {self.key}",
            f"  UserKnownHostsFile {self.folder}/known_hosts",
            "  StrictHostKeyChecking accept-new",
            "  IdentitiesOnly yes",
            # One handshake for all commands: in an emulator it is a second of work.
            "  ControlMaster auto",
            f"  ControlPath {self.folder}/ssh-%r",
            "  ControlPersist 60",
            "  ServerAliveInterval 5",
        )
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def ssh(self, command: str, user: str = "root", timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command there, by ssh, as it would come from another machine."""
        return self._ssh(user, "-o", "ConnectTimeout=10", command=[command], timeout=timeout)

    def hang_up(self) -> None:
        """End what was kept open for the next command."""
        for user in ("root", ADMIN):
            self._ssh(user, "-O", "exit")

    def _ssh(
        self, user: str, *options: str, command: Sequence[str] = (), timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        words = ["ssh", "-F", str(self.ssh_config), *options, f"{user}@{self.address}", *command]
        return subprocess.run([*self._neighbour, *words], capture_output=True, text=True, timeout=timeout, check=False)

    def vanish(self) -> None:
        """Like a node that is switched off: it does not answer, and closes no connection."""
        if self._program is not None:
            self.hang_up()
            with suppress(ProcessLookupError):
                os.killpg(self._program.pid, signal.SIGKILL)
            self._program.wait()
            self._program = None

    def remove(self) -> None:
        self.vanish()
        shutil.rmtree(self.folder, ignore_errors=True)


N = TypeVar("N", bound=Newcomer)


@contextmanager
def switched_on(node: N) -> Iterator[N]:
    try:
        node.start()
        yield node
    finally:
        node.remove()
