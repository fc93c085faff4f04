"""Reads the usage of this node's Pods from the kernel, and finds the Pod of a process.

A kubelet makes one control group for each Pod, and puts the Pod's UID into its name. Called in threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.engines.containers.usage import measure_groups
from commonage.engines.rundir.proc import process_info

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})", re.ASCII)
_KUBELETS = ("", "*/", "*/*/")
"""Where kubelets make their groups: below the root, or below groups of containers in which they run (kind, k3d)."""
_CLASSES = ("", "*besteffort*/", "*burstable*/")
_PATTERNS = tuple(f"{parent}*kubepods*/{kind}*pod*" for parent in _KUBELETS for kind in _CLASSES)


class PodGroups:
    """`root` is where the node's `/proc` and `/sys` are mounted."""

    def __init__(self, root: Path) -> None:
        self._processes, self._groups = root / "proc", root / "sys/fs/cgroup"

    def measure(self) -> list[Measurement]:
        """The use of each Pod, with its UID in place of an attempt's id. Pods that end meanwhile are left out."""
        root = self._groups
        found = (
            measure_groups(uid, dict.fromkeys(("", "cpuacct", "memory"), path), root) for uid, path in self._pods()
        )
        # The process ids here are of another namespace.
        return [replace(one, pids=()) for one in found if one is not None]

    def owners(self, pids: Collection[int]) -> list[ProcessOwner]:
        """Owners of the processes that still run, with the UID of a Pod as attempt. `pids` are those of the node."""
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

    def _pods(self) -> Iterator[tuple[str, str]]:
        """UIDs of Pods, and paths of their groups. In version 1 the path is the same below each controller."""
        unified = (self._groups / "cgroup.controllers").exists()
        root, seen = self._groups if unified else self._groups / "cpuacct", set()
        for pattern in _PATTERNS:
            for group in root.glob(pattern):
                uid = _uid_in(group.name)
                if uid is not None and uid not in seen:
                    seen.add(uid)
                    yield uid, str(group.relative_to(root))


def _uid_in(text: str) -> str | None:
    match = _POD.search(text)
    return None if match is None else match[1].replace("_", "-")
