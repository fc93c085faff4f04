"""Control groups, version 2 or 1: they limit an attempt's memory and CPU, and end all of its processes.

Each attempt has one group (version 2) or one in each hierarchy (version 1), named after it, below `commonage/<key of
the data folder>`. Memory is a hard limit, swap included. CPU is a weight: busy cores are shared in proportion to the
requests, idle ones may be used by any process. If an admin sets a quota, no attempt gets more than its request on
average, even if cores are idle; the burst lets a group that was idle (a session that starts, a cell that is run) spend
what it saved in the last period. Created by `find_cgroups`; called in threads by the engine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.engines import CpuNotLimited, MemoryNotLimited
from commonage.domain.statuses import LastUse
from commonage.engines.process.groups.groups import Use
from commonage.engines.process.processes import send

_PERIOD_US = 100_000
# dmem (kernel 6.14) is where the GPU driver counts and limits a GPU's memory; we set no limit there ourselves.
_WANTED = ("memory", "cpu", "cpuacct", "pids", "dmem")
_MIB = 1024 * 1024
_KILL_WITHIN_S = 2.0  # on a busy node a killed process waits for CPU time before it ends
_KILL_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A location for our groups: the parent folder of the attempts' groups, its version, and its controllers."""

    folder: Path
    version: int
    controllers: frozenset[str]


class Cgroups:
    """`Groups` by control groups, in these hierarchies; the first one is used to list processes."""

    def __init__(self, hierarchies: Iterable[Hierarchy], processes_max: int, cpu_quota: bool = False) -> None:
        self._hierarchies = tuple(hierarchies)
        self._processes_max = processes_max
        self._cpu_quota = cpu_quota
        controllers = frozenset[str]().union(*(place.controllers for place in self._hierarchies))
        self._by = {name: place for place in self._hierarchies for name in place.controllers}
        self.limits_memory = "memory" in controllers
        self.limits_cpu = "cpu" in controllers
        self.notes = tuple(_notes(self.limits_memory, self.limits_cpu))

    def make(self, attempt_id: str, cpus_milli: int, memory_mib: int) -> list[str]:
        try:
            for place in self._hierarchies:
                folder = place.folder / attempt_id
                folder.mkdir(exist_ok=True)
                for name, value in self._limits(place, cpus_milli, memory_mib):
                    _write(folder / name, value)
                for name, value in self._stops(place, cpus_milli, memory_mib):
                    _try_write(folder / name, value)
        except OSError as error:
            raise EngineFailure(f"its control group cannot be made: {error}", retryable=True) from error
        return self.joins(attempt_id)

    def joins(self, attempt_id: str) -> list[str]:
        return [str(place.folder / attempt_id / "cgroup.procs") for place in self._hierarchies]

    def _limits(self, place: Hierarchy, cpus_milli: int, memory_mib: int) -> Iterator[tuple[str, str]]:
        """Mandatory limits: without them the attempt is not started."""
        if place.version == 2:
            if "memory" in place.controllers:
                yield "memory.max", str(memory_mib * _MIB)
            if "cpu" in place.controllers:
                yield "cpu.weight", str(min(10_000, max(1, cpus_milli // 10)))
                yield "cpu.max", f"{_quota_us(cpus_milli) if self._cpu_quota else 'max'} {_PERIOD_US}"
            if "pids" in place.controllers:
                yield "pids.max", str(self._processes_max)
            return
        if "memory" in place.controllers:
            yield "memory.limit_in_bytes", str(memory_mib * _MIB)
        if "cpu" in place.controllers:
            yield "cpu.shares", str(max(2, cpus_milli * 1024 // 1000))
            yield "cpu.cfs_period_us", str(_PERIOD_US)
            yield "cpu.cfs_quota_us", str(_quota_us(cpus_milli) if self._cpu_quota else -1)
        if "pids" in place.controllers:
            yield "pids.max", str(self._processes_max)

    def _stops(self, place: Hierarchy, cpus_milli: int, memory_mib: int) -> Iterator[tuple[str, str]]:
        """Optional limits: older kernels, and those without swap accounting, lack them."""
        if "memory" in place.controllers:
            if place.version == 2:
                yield "memory.swap.max", "0"
            else:
                yield "memory.memsw.limit_in_bytes", str(memory_mib * _MIB)
        if "cpu" in place.controllers and self._cpu_quota:
            yield "cpu.max.burst" if place.version == 2 else "cpu.cfs_burst_us", str(_quota_us(cpus_milli))

    def pids(self, attempt_id: str) -> list[int]:
        """Its processes, by the first hierarchy: a process joins that one first and leaves it last."""
        return _pids(self._hierarchies[0].folder / attempt_id)

    def kill(self, attempt_id: str) -> bool:
        """SIGKILL to all, at once if the kernel supports that, else repeatedly until none is left."""
        folders = [place.folder / attempt_id for place in self._hierarchies]
        if not folders[0].is_dir():
            return True
        # From here on none of them can start another process.
        if "pids" in self._by:
            _try_write(self._by["pids"].folder / attempt_id / "pids.max", "0")
        give_up = time.monotonic() + _KILL_WITHIN_S
        while time.monotonic() < give_up:
            if not _try_write(folders[0] / "cgroup.kill", "1"):
                send(_pids(folders[0]), signal.SIGKILL)
            if not _pids(folders[0]):
                return True
            time.sleep(_KILL_PAUSE_S)
        return not _pids(folders[0])

    def was_oom(self, attempt_id: str) -> bool:
        place = self._by.get("memory")
        if place is None:
            return False
        name = "memory.events" if place.version == 2 else "memory.oom_control"
        return _figure(place.folder / attempt_id / name, "oom_kill") > 0

    def use(self, attempt_id: str) -> Use | None:
        pids = self.pids(attempt_id)
        if not pids:
            return None
        memory, cpu = self._by.get("memory"), self._by.get("cpuacct") or self._by.get("cpu")
        return Use(
            _cpu_s(cpu, attempt_id) if cpu else 0.0,
            _memory_mib(memory, attempt_id) if memory else 0,
            tuple(pids),
        )

    def last_use(self, attempt_id: str) -> LastUse | None:
        """The kernel's accounting of an ended attempt, which remains until its groups are removed."""
        memory, cpu = self._by.get("memory"), self._by.get("cpuacct") or self._by.get("cpu")
        if memory is None or cpu is None:
            return None
        peak = "memory.peak" if memory.version == 2 else "memory.max_usage_in_bytes"  # the first since Linux 5.19
        try:
            peak_mib = int((memory.folder / attempt_id / peak).read_bytes()) // _MIB
        except OSError:
            return None
        return LastUse(_cpu_s(cpu, attempt_id), peak_mib)

    def remove(self, attempt_id: str) -> bool:
        for place in self._hierarchies:
            try:
                (place.folder / attempt_id).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def close(self) -> None:
        """Remove our folders if no process runs in them; the next server creates them again."""
        for place in self._hierarchies:
            with suppress(OSError):
                place.folder.rmdir()


def _quota_us(cpus_milli: int) -> int:
    """Microseconds in each period; the kernel's minimum is a thousand."""
    return max(1000, cpus_milli * _PERIOD_US // 1000)


def _cpu_s(place: Hierarchy, attempt_id: str) -> float:
    folder = place.folder / attempt_id
    if place.version == 2:
        return _figure(folder / "cpu.stat", "usage_usec") / 1e6
    try:
        return int((folder / "cpuacct.usage").read_bytes()) / 1e9
    except OSError:
        return 0.0


def _memory_mib(place: Hierarchy, attempt_id: str) -> int:
    """The attempt's memory without inactive file pages, which the kernel reclaims when it needs them."""
    folder = place.folder / attempt_id
    current = folder / ("memory.current" if place.version == 2 else "memory.usage_in_bytes")
    inactive = "inactive_file" if place.version == 2 else "total_inactive_file"
    try:
        held = int(current.read_bytes())
    except OSError:
        return 0
    return max(0, held - _figure(folder / "memory.stat", inactive)) // _MIB


def _figure(path: Path, name: str) -> int:
    """A number from a file of lines like `oom_kill 0`; 0 if it is missing."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except OSError:
        return 0
    return 0


def _pids(folder: Path) -> list[int]:
    try:
        return [int(word) for word in (folder / "cgroup.procs").read_bytes().split()]
    except OSError:
        return []


def _write(path: Path, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode("ascii"))
    finally:
        os.close(descriptor)


def _try_write(path: Path, value: str) -> bool:
    try:
        _write(path, value)
    except OSError:
        return False
    return True


def _notes(limits_memory: bool, limits_cpu: bool) -> Iterator[Reason]:
    if not limits_memory:
        yield MemoryNotLimited()
    if not limits_cpu:
        yield CpuNotLimited()


def find_cgroups(
    key: str, processes_max: int, root: Path = Path("/sys/fs/cgroup"), *, cpu_quota: bool = False
) -> Cgroups | None:
    """Control groups for the engine with this key, in the version that permits it; None if none does."""
    if (root / "cgroup.controllers").exists():
        found = _find_unified(root, key)
        return Cgroups([found], processes_max, cpu_quota) if found else None
    by_folder: dict[Path, set[str]] = {}
    for name in _WANTED:
        if (root / name / "cgroup.procs").exists():
            by_folder.setdefault((root / name).resolve(), set()).add(name)
    hierarchies = []
    for mount, controllers in by_folder.items():
        # At the top, as dockerd does it: below the server's own group, its runs would end with the server's service.
        folder = mount / "commonage" / key
        if _make_folders(folder):
            _weigh(folder, "cpu.shares", 1024, 262_144)
            hierarchies.append(Hierarchy(folder, 1, frozenset(controllers)))
    return Cgroups(hierarchies, processes_max, cpu_quota) if hierarchies else None


def _find_unified(root: Path, key: str) -> Hierarchy | None:
    """At the top if permitted, else below our own group if that was delegated to us (systemd's Delegate=yes)."""
    own = root / _own_path().lstrip("/")
    for home in dict.fromkeys((root, own)):
        folder = home / "commonage" / key
        if not _make_folders(folder):
            continue
        if home == own:
            # A group may have either processes or controlled children, so this process moves one level down.
            server = home / "commonage-server"
            if _make_folders(server):
                _try_write(server / "cgroup.procs", str(os.getpid()))
        enabled = [_enable(above) for above in (home, home / "commonage", folder)][-1]
        if "memory" in enabled or "cpu" in enabled:
            _weigh(folder, "cpu.weight", 100, 10_000)
            return Hierarchy(folder, 2, enabled)
        for made in (folder, home / "commonage"):
            with suppress(OSError):
                made.rmdir()
    return None


def _weigh(folder: Path, name: str, one: int, most: int) -> None:
    """Weigh all workloads together like one process for each core, `one` each, up to `most`.

    Otherwise each other process of the node would weigh as much as all of them together.
    """
    for above in (folder.parent, folder):
        _try_write(above / name, str(min(most, one * (os.cpu_count() or 1))))


def _enable(folder: Path) -> frozenset[str]:
    """Enable the controllers that we need for the groups below; return the enabled ones."""
    control = folder / "cgroup.subtree_control"
    try:
        there = set((folder / "cgroup.controllers").read_text(encoding="ascii").split())
        for name in set(_WANTED) & there - set(control.read_text(encoding="ascii").split()):
            _try_write(control, f"+{name}")
        return frozenset(control.read_text(encoding="ascii").split()) & frozenset(_WANTED)
    except OSError:
        return frozenset()


def _own_path() -> str:
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            return path
    return "/"


def _make_folders(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
