"""A file server of the tests' own: NFS 4 from a node of a Swarm, by a program, as the kernel here serves none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.harness.dockerd import new_folder

_UP_WITHIN_S = 60
_SETTINGS = """
NFS_CORE_PARAM {{ Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}
NFSv4 {{ Graceless = true; Minor_Versions = 1; RecoveryRoot = {place}/state; }}
EXPORT {{
  Export_Id = 1; Path = {folder}; Pseudo = {name}; Protocols = 4; Transports = TCP;
  Access_Type = RW; Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }}
}}
"""


@contextmanager
def served_by_nfs(folder: Path, name: str, before: tuple[str, ...]) -> Iterator[None]:
    """Serve a folder as `name`. `before`: the words before a command that has it run on the node that serves."""
    place = new_folder()
    (place / "state").mkdir()
    (place / "settings").write_text(_SETTINGS.format(place=place, folder=folder, name=name))
    command = ["ganesha.nfsd", "-F", "-L", f"{place}/log", "-f", f"{place}/settings", "-p", f"{place}/pid"]
    server = subprocess.Popen([*before, *command], start_new_session=True)
    try:
        listens = [*before, "sh", "-c", "ss -Htln sport = :2049 | grep -q ."]
        deadline = time.monotonic() + _UP_WITHIN_S
        while subprocess.run(listens, check=False).returncode != 0 or "SERVER INITIALIZED" not in _log(place):
            assert server.poll() is None and time.monotonic() < deadline, _log(place)
            time.sleep(0.1)
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        shutil.rmtree(place, ignore_errors=True)


def _log(place: Path) -> str:
    log = place / "log"
    return log.read_text(errors="replace") if log.exists() else ""
