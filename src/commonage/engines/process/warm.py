"""Sessions that start warm: one waiting parent (zygote.py) for each environment that sessions run in.

Called by the launcher, in threads. Where there is no warm parent yet, or it fails, the answer is None and the session is
started cold like any program; so nothing depends on this but speed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.engines.process.processes import boot_id

log = logging.getLogger(__name__)
PROGRAM = "jupyterhub-singleuser"
_ZYGOTE = str(Path(__file__).with_name("zygote.py"))
_ANSWERS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class _Parent:
    process: subprocess.Popen[bytes]
    socket_path: str


class WarmSessions:
    """The warm parents, by the environment's folder. Thread safe."""

    def __init__(self) -> None:
        self._parents: dict[Path, _Parent] = {}
        self._lock = threading.Lock()
        # A Unix socket's path is short by nature, and the data folder's need not be.
        self._folder = tempfile.TemporaryDirectory(prefix="commonage-warm-")

    def prepare(self, root: Path) -> None:
        """Have a warm parent for the environment in `root` come up, unless it is there or cannot be."""
        with self._lock:
            parent = self._parents.get(root)
            if parent is not None and parent.process.poll() is None:
                return
            if not (root / "bin" / PROGRAM).exists():
                return
            path = os.path.join(self._folder.name, f"{len(self._parents)}-{os.urandom(4).hex()}")
            with suppress(OSError):
                self._parents[root] = _Parent(self._spawn(root, path), path)

    def _spawn(self, root: Path, path: str) -> subprocess.Popen[bytes]:
        variables = {"PATH": f"{root / 'bin'}:/usr/bin:/bin", "HOME": self._folder.name, "LANG": "C.UTF-8"}
        return subprocess.Popen(
            ["nice", "-n", "5", str(root / "bin" / "python"), "-I", _ZYGOTE, path, PROGRAM],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**variables, "VIRTUAL_ENV": str(root)},
        )

    def spawn(
        self, root: Path, run: Path, groups: Sequence[str], command: Sequence[str], variables: Mapping[str, str], cwd: Path
    ) -> int | None:
        """Fork a session for the run folder; its keeper's pid, or None where it must be started cold."""
        if command[0] != PROGRAM or not groups:
            return None  # without cgroups a fork could not be told from its parent
        parent = self._parents.get(root)
        if parent is None or parent.process.poll() is not None or not os.path.exists(parent.socket_path):
            self.prepare(root)
            return None
        ask = {
            "run": str(run),
            "boot": boot_id(),
            "groups": list(groups),
            "arguments": list(command[1:]),
            "variables": dict(variables),
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
            for parent in self._parents.values():
                parent.process.kill()
                parent.process.wait()
            self._parents.clear()
            self._folder.cleanup()
