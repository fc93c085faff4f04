"""Kernel data about containers: their processes, CPU time and memory, and the owner of a process.

For engines whose containers run on the control plane's own node, and for the agent on any other: standard library only.
Called in threads.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from commonage.domain.statuses import Measurement, ProcessOwner

_MIB = 1024 * 1024
_TICKS = os.sysconf("SC_CLK_TCK")
_CONTAINER = re.compile(r"[0-9a-f]{64}")


class _ContainerState(NamedTuple):
    name: str
    began: int


def booted_at() -> float:
    """Boot time of this node, unix seconds."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def daemon_started_at(pid: int, name: str = "dockerd") -> float | None:
    """Start time, unix seconds, of the daemon `name` that is reached through the process `pid`.

    That is `pid` itself, or a proxy; then it is the only process of that name. None if there are none or several.
    """
    look = _look(pid)
    if look is None or look.name != name:
        others = (_look(int(entry.name)) for entry in os.scandir("/proc") if entry.name.isdigit())
        found = [one for one in others if one is not None and one.name == name]
        look = found[0] if len(found) == 1 else None
    return None if look is None else booted_at() + look.began / _TICKS


def measure(attempt_id: str, pid: int, root: Path = Path("/sys/fs/cgroup")) -> Measurement | None:
    """Usage of the container whose first process is `pid`; None if it is gone, or its control group is not visible."""
    groups = _groups_of(pid)
    if groups is None:
        return None
    unified = (root / "cgroup.controllers").exists()
    try:
        if unified:
            group = _folder(root, groups[""])
            cpu_s = _field(group / "cpu.stat", "usage_usec") / 1e6
            memory = int((group / "memory.current").read_text()) - _field(group / "memory.stat", "inactive_file")
            pids = _pids(group)
        else:
            group = root / "memory" / groups["memory"]
            cpu_s = int((root / "cpuacct" / groups["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
            memory = int((group / "memory.usage_in_bytes").read_text())
            memory -= _field(group / "memory.stat", "total_inactive_file")
            pids = _pids(group)
    except (OSError, KeyError, ValueError):
        return None
    return Measurement(attempt_id, cpu_s, max(0, memory) // _MIB, pids)


def owners_of(pids: Collection[int], attempts: Mapping[str, str]) -> list[ProcessOwner]:
    """Owners of the processes that still run, by pid; `attempts` maps container ids to attempts."""
    found, since = [], booted_at()
    for pid in sorted(set(pids)):
        look, groups = _look(pid), _groups_of(pid)
        if look is not None and groups is not None:
            ids = {attempts.get(one) for path in groups.values() for one in _CONTAINER.findall(path)} - {None}
            found.append(ProcessOwner(pid, next(iter(ids), None), look.name, since + look.began / _TICKS))
    return found


def _groups_of(pid: int) -> dict[str, str] | None:
    """Its control groups by controller ("" in version 2), as paths below the root."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            found[controller] = path.lstrip("/")
    return found


def _folder(root: Path, path: str) -> Path:
    """Path of a group of version 2.

    Seen from a container, as a control plane may be, the path to other groups leads up first and does not say where to;
    then the group is searched where Docker creates them.
    """
    if not path.startswith("../"):
        return root / path
    places = (root / parent / path.rpartition("/")[2] for parent in ("docker", "system.slice"))
    return next((place for place in places if place.exists()), root / path)


def _pids(group: Path) -> tuple[int, ...]:
    found = [int(word) for word in (group / "cgroup.procs").read_text().split()]
    for entry in os.scandir(group):  # groups that the container made for itself
        if entry.is_dir(follow_symlinks=False):
            with suppress(OSError):
                found += _pids(Path(entry.path))
    return tuple(sorted(found))


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    raise KeyError(name)


def _look(pid: int) -> _ContainerState | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may contain anything.
    name, _, rest = stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    if fields[0] in (b"Z", b"X"):
        return None
    return _ContainerState(name.decode("utf-8", "replace"), int(fields[19]))
