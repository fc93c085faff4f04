"""Kernel data about containers: their processes, CPU time and memory, and the owner of a process.

For engines whose containers run on the control plane's own node, and for the agent on any other: standard library only.
Called in threads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.engines.rundir.proc import process_info

_MIB = 1024 * 1024
_CONTAINER = re.compile(r"[0-9a-f]{64}")


def daemon_started_at(pid: int, name: str = "dockerd") -> float | None:
    """Start time, unix seconds, of the daemon `name` that is reached through the process `pid`.

    That is `pid` itself, or a proxy; then it is the only process of that name. None if no process or several have the
    name.
    """
    look = process_info(pid)
    if look is None or look.name != name:
        others = (process_info(int(entry.name)) for entry in os.scandir("/proc") if entry.name.isdigit())
        found = [other for other in others if other is not None and other.name == name]
        look = found[0] if len(found) == 1 else None
    return None if look is None else look.started_at


def measure(attempt_id: str, pid: int, root: Path = Path("/sys/fs/cgroup")) -> Measurement | None:
    """Usage of the container whose first process is `pid`; None if it is gone, or its control group is not visible."""
    groups = _groups_of(pid)
    return None if groups is None else measure_groups(attempt_id, groups, root)


def measure_groups(attempt_id: str, groups: Mapping[str, str], root: Path) -> Measurement | None:
    """Usage of the groups of these controllers ("" in version 2), as paths below `root`; None if one is gone."""
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
    found = []
    for pid in sorted(set(pids)):
        info, groups = process_info(pid), _groups_of(pid)
        if info is not None and groups is not None:
            ids = {attempts.get(one) for path in groups.values() for one in _CONTAINER.findall(path)} - {None}
            found.append(ProcessOwner(pid, next(iter(ids), None), info.name, info.started_at))
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
