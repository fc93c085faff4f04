"""Removes the leftovers of killed test runs, which it finds by name, before a new run makes the same.

Folders in /tmp and network namespaces carry the process id and the start of the run that made them, processes have
them in a variable. Nothing of a live run is removed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from commonage.agent.containers.processes import unpause

FOLDER = "cmng-docker-"
SPACE = "cmns-"
_RUN = "CMNG_TEST_RUN"
_TAG = re.compile(r"(\d+)x(\d+)", re.ASCII)
_TRUSTED = Path("/etc/docker/certs.d")  # of all Docker daemons of a node: they have no setting for it
_BRIDGE = re.compile(rb"br-[0-9a-f]{12}")


@cache
def tag(pid: int | None = None) -> str:
    """The mark of this run, or of the process `pid`: its id, and when it started, in the kernel's ticks."""
    pid = pid or os.getpid()
    return f"{pid}x{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"


def _is_dead(name: str) -> bool:
    """True for the name of something that a run made which is over."""
    found = _TAG.search(name)
    if found is None:
        return False
    try:
        return tag.__wrapped__(int(found[1])) != found[0]
    except OSError:
        return True


@cache
def clear_leftovers() -> None:
    """Once in each run: daemons and what ran in them, mounts, bridges, folders, network namespaces."""
    os.environ[_RUN] = tag()  # for all that this run starts
    with open("/tmp/cmng-leftovers.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folders = [one for one in Path("/tmp").glob(f"{FOLDER}*") if _is_dead(one.name)]
        places = Path("/run/netns")
        spaces = [one.name for one in places.glob(f"{SPACE}*") if _is_dead(one.name)] if places.exists() else []
        for pid in _processes(folders, spaces):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        unpause(
            [one.name for folder in folders for one in folder.glob("data/containers/*")]
        )  # a paused one does not die
        for folder in folders:
            _remove(folder)
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)
        for mark in _TRUSTED.glob(f"*/{FOLDER}*"):
            if _is_dead(mark.name):
                shutil.rmtree(mark.parent, ignore_errors=True)


@contextmanager
def trusted_by_docker(registry: str, certificate: str) -> Iterator[None]:
    """Let Docker daemons trust the registry at this address, until this test run ends."""
    folder = _TRUSTED / registry
    shutil.rmtree(folder, ignore_errors=True)  # a run that was killed may have had the same port
    folder.mkdir(parents=True)
    try:
        (folder / f"{FOLDER}{tag()}").touch()
        (folder / "ca.crt").write_text(certificate)
        yield
    finally:
        shutil.rmtree(folder)


def _processes(folders: list[Path], spaces: list[str]) -> list[int]:
    """Processes of ended runs: those they started, those in their containers, and those in their networks."""
    found = []
    for space in spaces:
        listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False).stdout
        found += [int(word) for word in listed.split()]
    # One more folder if the daemon maps users.
    kept = [one for folder in folders for place in ("data", "data/*") for one in folder.glob(f"{place}/containers/*")]
    containers = {one.name for one in kept}
    for entry in (one for one in Path("/proc").iterdir() if one.name.isdigit()):
        with suppress(OSError):
            variables, groups = (entry / "environ").read_bytes().split(b"\0"), (entry / "cgroup").read_text()
            run = next((one for one in variables if one.startswith(f"{_RUN}=".encode())), b"").decode()
            if (run and _is_dead(run)) or containers.intersection(groups.replace("\n", "/").split("/")):
                found.append(int(entry.name))
    return found


def _remove(folder: Path) -> None:
    """A daemon's folder, with the bridges and rules of networks that it had in our own network namespace."""
    with suppress(OSError):
        for bridge in set(_BRIDGE.findall((folder / "data/network/files/local-kv.db").read_bytes())):
            _remove_bridge(bridge.decode())
    unmount_below(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_bridge(name: str) -> None:
    if subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True).returncode != 0:
        return
    for table in ("filter", "nat"):
        rules = subprocess.run(["iptables", "-w", "-t", table, "-S"], check=False, capture_output=True, text=True)
        for rule in rules.stdout.splitlines():
            if name in rule.split() and rule.startswith("-A "):
                words = ["iptables", "-w", "-t", table, "-D", *rule.split()[1:]]
                subprocess.run(words, check=False, capture_output=True)


def unmount_below(folder: Path) -> None:
    """Take away all that is mounted in a folder, or on it."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in sorted((one for one in mounts if Path(one).is_relative_to(folder)), reverse=True):
        subprocess.run(["umount", "--lazy", place], check=False)
