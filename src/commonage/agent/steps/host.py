"""The node as the steps of joining use it: programs, files written atomically, services, packages.

Packages are installed with apt-get, dnf or zypper; from a mirror only if nothing else can be reached.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commonage.files.atomic import write_file

SYSTEMD = Path("/run/systemd/system")
_MAX_SHOWN = 600


class StepFailed(Exception):
    """A step failed; the message says what was tried, the result, and what to do."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def output_tail(self) -> str:
        return " ".join((self.err or self.out).split())[-_MAX_SHOWN:] or f"exit code {self.code}"


class Host:
    """This node. `docker` is where its daemon listens."""

    docker = "unix:///var/run/docker.sock"

    def run(
        self,
        *words: str,
        timeout_s: float = 60.0,
        text: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a program to its end. A missing program or a timeout counts as a failure."""
        try:
            ended = subprocess.run(
                words, input=text, capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace",
                env={**os.environ, "LC_ALL": "C.UTF-8", "HOME": "/root", **(environment or {})},
                stdin=None if text is not None else subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError:
            return CommandResult(127, "", f"{words[0]} is not installed")
        except subprocess.TimeoutExpired:
            return CommandResult(124, "", f"{words[0]} took more than {timeout_s:g} s")
        return CommandResult(ended.returncode, ended.stdout, ended.stderr)

    def run_or_fail(self, *words: str, timeout_s: float = 60.0, environment: Mapping[str, str] | None = None) -> str:
        """Run a program and return its output. Raises StepFailed with its message."""
        ran = self.run(*words, timeout_s=timeout_s, environment=environment)
        if not ran.ok:
            raise StepFailed(f"`{' '.join(words[:6])}` failed: {ran.output_tail}")
        return ran.out

    def has(self, program: str) -> bool:
        return shutil.which(program) is not None

    def read(self, path: Path) -> str | None:
        """The content of a file; None if it does not exist."""
        try:
            return path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Write a file atomically; missing parent folders are created."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text, mode)

    def mounted(self, path: Path) -> str | None:
        """The type of the file system that is mounted at this path; None if it is no mount point."""
        kind = None
        for line in (self.read(Path("/proc/self/mounts")) or "").splitlines():
            words = line.split()
            if len(words) > 2 and words[1].replace("\\040", " ") == str(path):
                kind = words[2]
        return kind

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Poll until the condition is true; False after a timeout."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    # --- services ---------------------------------------------------------------------------------------------------

    @property
    def systemd(self) -> bool:
        return SYSTEMD.is_dir()

    def start_at_boot(self, service: str) -> None:
        if self.systemd:
            self.run_or_fail("systemctl", "enable", "--quiet", service, timeout_s=180)
        elif self.has("update-rc.d"):
            self.run_or_fail("update-rc.d", service, "defaults")

    def service(self, verb: str, service: str) -> None:
        """`start`, `restart` or `stop` a service, by systemd or its script in /etc/init.d. Raises StepFailed."""
        if self.systemd:
            self.run_or_fail("systemctl", verb, service, timeout_s=180)
            return
        script = f"/etc/init.d/{service}"
        if not os.access(script, os.X_OK):
            raise StepFailed(
                f"cannot {verb} {service}: this machine runs neither systemd nor {script}. {verb.capitalize()} "
                "it by hand, then run this again"
            )
        # It may leave processes behind that keep our pipes open: its output goes to a file.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            code = subprocess.run(
                [script, verb], stdout=output, stderr=output, stdin=subprocess.DEVNULL, timeout=180, check=False
            ).returncode
            output.seek(0)
            if code != 0:
                raise StepFailed(f"`{script} {verb}` failed: {CommandResult(code, output.read(), '').output_tail}")


# --- packages

_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "docker": {"apt-get": ("docker.io", "iptables"), "dnf": ("moby-engine",), "zypper": ("docker",)},
    "openssl": {"apt-get": ("openssl",), "dnf": ("openssl",), "zypper": ("openssl",)},
    "iptables": {"apt-get": ("iptables",), "dnf": ("iptables-nft",), "zypper": ("iptables",)},
    "nfs": {"apt-get": ("nfs-common",), "dnf": ("nfs-utils",), "zypper": ("nfs-client",)},
    "nvidia-toolkit": {
        "apt-get": ("nvidia-container-toolkit",),
        "dnf": ("nvidia-container-toolkit",),
        "zypper": ("nvidia-container-toolkit",),
    },
    "nvidia-cuda": {
        "apt-get": ("libcuda1",),
        "dnf": ("nvidia-driver-cuda-libs",),
        "zypper": ("nvidia-compute-G06",),
    },
    "nvidia-driver": {
        "apt-get": ("nvidia-driver", "nvidia-smi", "libcuda1"),
        "dnf": ("nvidia-driver", "nvidia-driver-cuda"),
        "zypper": ("nvidia-driver-G06-kmp-default", "nvidia-compute-utils-G06"),
    },
}
"""The package names of a tool for each package manager."""

_LIST = Path("/run/commonage-mirror.list")
_TIMEOUT_S = 1800.0
# Keep existing settings files: the installation is not interactive.
_KEEP_CONFFILES = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")


def package_manager(host: Host) -> str:
    for name in ("apt-get", "dnf", "zypper"):
        if host.has(name):
            return name
    raise StepFailed("this machine has no package manager that Commonage knows (apt-get, dnf, zypper)")


def packages_for(host: Host, things: Sequence[str]) -> list[str]:
    """The packages for these tools here. A name that is not in the table is a package's own name."""
    manager = package_manager(host)
    return [name for thing in things for name in _NAMES.get(thing, {}).get(manager, (thing,))]


def install(host: Host, packages: Sequence[str], mirror: str = "") -> None:
    """Install these packages; only from `mirror` if one is given. Raises StepFailed with the manager's message.

    `mirror` is a line for sources.list, or the address of a flat repository; for dnf and zypper a repository's address.
    """
    manager = package_manager(host)
    if manager == "apt-get":
        return _install_with_apt(host, packages, mirror)
    if manager == "dnf":
        source = ["--repofrompath", f"commonage-mirror,{mirror}", "--repo", "commonage-mirror"] if mirror else []
        command = ["dnf", "install", "-y", "-q", *source, *packages]
    else:
        source = ["--plus-repo", mirror] if mirror else []
        command = ["zypper", "--non-interactive", "--quiet", *source, "install", *packages]
    _run(host, command, packages)


def _install_with_apt(host: Host, packages: Sequence[str], mirror: str) -> None:
    options: list[str] = []
    if mirror:
        host.write(_LIST, apt_line(mirror) + "\n")
        options = [
            "-o", f"Dir::Etc::sourcelist={_LIST}", "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0",
        ]  # fmt: skip
    try:
        _run(host, ["apt-get", "update", "-qq", *options], packages)
        _run(
            host,
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *_KEEP_CONFFILES, *options, *packages],
            packages,
        )
    finally:
        _LIST.unlink(missing_ok=True)


def apt_line(mirror: str) -> str:
    """A mirror as a line of sources.list. Only a local folder needs no signature."""
    if mirror.startswith("deb "):
        return mirror
    return f"deb [trusted=yes] {mirror} ./" if mirror.startswith("file:") else f"deb {mirror} ./"


def _run(host: Host, command: Sequence[str], packages: Sequence[str]) -> None:
    ran = host.run(*command, timeout_s=_TIMEOUT_S, environment={"DEBIAN_FRONTEND": "noninteractive"})
    if not ran.ok:
        output = CommandResult(ran.code, "", f"{ran.out}\n{ran.err}").output_tail  # the error may be in either stream
        raise StepFailed(
            f"{', '.join(packages)} could not be installed: {output}; install it by hand, or name a source that has it "
            "with --mirror"
        )
