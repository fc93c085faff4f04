"""The node as the steps of joining use it: programs, files written atomically, services, packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)

    def mounted(self, path: Path) -> str | None:
        """The type of the file system that is mounted at this path; None if it is no mount point."""
        found = None
        for line in (self.read(Path("/proc/self/mounts")) or "").splitlines():
            words = line.split()
            if len(words) > 2 and words[1].replace("\\040", " ") == str(path):
                found = words[2]
        return found

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Poll until the condition is true; False after a timeout."""
        deadline = time.monotonic() + seconds
        while not until():
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
