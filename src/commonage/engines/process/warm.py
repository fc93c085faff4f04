"""Sessions that start warm: one waiting parent (zygote.py) for each environment that sessions run in.

Called by the launcher, in threads. Where there is no warm parent yet, or it fails, the answer is None and the session
is started cold like any program; so nothing depends on this but speed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.engines.process.processes import boot_id
from commonage.engines.process.translate import Program

log = logging.getLogger(__name__)
PROGRAM = "jupyterhub-singleuser"
_ZYGOTE = str(Path(__file__).with_name("zygote.py"))
_ANSWERS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class _Parent:
    process: subprocess.Popen[bytes]
    socket_path: str


class WarmSessions:
    """The warm parents, by the folder of the environment's programs. Thread safe."""

    def __init__(self) -> None:
        self._parents: dict[Path, _Parent] = {}
        self._lock = threading.Lock()
        self._closed = False
        # A Unix socket's path is short by nature, and the data folder's need not be.
        self._folder = tempfile.TemporaryDirectory(prefix="commonage-warm-")

    def prepare(self, programs: Path) -> None:
        """Have a warm parent for the environment with these programs come up, unless it is there or cannot be."""
        with self._lock:
            parent = self._parents.get(programs)
            if self._closed or (parent is not None and parent.process.poll() is None):
                return
            if not (programs / PROGRAM).exists():
                return
            path = os.path.join(self._folder.name, f"{len(self._parents)}-{os.urandom(4).hex()}")
            with suppress(OSError):
                self._parents[programs] = _Parent(self._spawn(programs, path), path)

    def _spawn(self, programs: Path, path: str) -> subprocess.Popen[bytes]:
        variables = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": self._folder.name, "LANG": "C.UTF-8"}
        return subprocess.Popen(
            [str(programs / "python"), "-I", _ZYGOTE, path, PROGRAM],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=variables,
        )

    def spawn(self, programs: Path, run: Path, groups: Sequence[str], program: Program, cwd: Path) -> int | None:
        """Fork a session for the run folder; its keeper's pid, or None where it must be started cold."""
        if program.command[0] != PROGRAM or not groups:
            return None  # without cgroups a fork could not be told from its parent
        parent = self._parents.get(programs)
        if parent is None or parent.process.poll() is not None or not os.path.exists(parent.socket_path):
            self.prepare(programs)
            return None
        ask = {
            "run": str(run),
            "boot": boot_id(),
            "groups": list(groups),
            "arguments": list(program.command[1:]),
            "variables": dict(program.variables),
            "cwd": str(cwd),
        }
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_ANSWERS_WITHIN_S)
                connection.connect(parent.socket_path)
                connection.sendall(json.dumps(ask).encode() + b"\n")
                return int(connection.makefile("rb").readline())
        except (OSError, ValueError) as error:
            # It may have forked all the same: the claim in the run folder sees to it that only one of the two runs.
            log.warning("no warm start, so a cold one: %s", error)
            return None

    def close(self) -> None:
        """End the parents; the sessions go on."""
        with self._lock:
            self._closed = True
            for parent in self._parents.values():
                parent.process.kill()
                parent.process.wait()
            self._parents.clear()
            self._folder.cleanup()
