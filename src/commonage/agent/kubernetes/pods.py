"""The Pods of this node as the kernel sees them: their use, and which of them a process belongs to.

A kubelet makes one control group for each Pod, and puts the Pod's UID into its name. Standard library only; called in
threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.engines.rundir.proc import process_info

_MIB = 1024 * 1024
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})", re.ASCII)
_PLACES = ("kubepods*", "*/kubepods*", "*/*-kubepods*", "*/*/*-kubepods*")
"""Of the kubelet's groups, below the root; the others are of kubelets in containers, as kind and k3d have them."""
_CLASSES = ("", "*besteffort*", "*burstable*")


class PodGroups:
    """`root` is where the node's `/proc` and `/sys` are mounted."""

    def __init__(self, root: Path) -> None:
        self._processes, self._groups = root / "proc", root / "sys/fs/cgroup"

    def measure(self) -> list[Measurement]:
        """The use of each Pod, with its UID in place of an attempt's id. Pods that end meanwhile are left out."""
        found = (_measure(uid, group) for uid, group in self._pods())
        return [one for one in found if one is not None]

    def owners(self, pids: Collection[int]) -> list[ProcessOwner]:
        """Owners of the processes that still run, by pid of the node, with the UID of a Pod as attempt."""
        found = []
        for pid in sorted(set(pids)):
            info = process_info(pid, self._processes)
            if info is not None:
                found.append(ProcessOwner(pid, self._pod_of(pid), info.name, info.started_at))
        return found

    def _pod_of(self, pid: int) -> str | None:
        try:
            text = (self._processes / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return _uid_in(text)

    def _pods(self) -> Iterator[tuple[str, Path]]:
        seen = set()
        for place in _PLACES:
            for kind in _CLASSES:
                for group in self._groups.glob(f"{place}/{kind}/*pod*" if kind else f"{place}/*pod*"):
                    uid = _uid_in(group.name)
                    if uid is not None and uid not in seen:
                        seen.add(uid)
                        yield uid, group


def _uid_in(text: str) -> str | None:
    match = _POD.search(text)
    return None if match is None else match[1].replace("_", "-")


def _measure(uid: str, group: Path) -> Measurement | None:
    try:
        cpu_s = _field(group / "cpu.stat", "usage_usec") / 1e6
        memory = int((group / "memory.current").read_text()) - _field(group / "memory.stat", "inactive_file")
    except (OSError, KeyError, ValueError):
        return None
    return Measurement(uid, cpu_s, max(0, memory) // _MIB)


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    raise KeyError(name)
