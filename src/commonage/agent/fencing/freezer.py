"""Pauses containers with the kernel's cgroup freezer, without their daemon: paused processes can continue later.

Used by `fencing`. Blocks for moments: call it in threads.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.agent.containers.containers import processes_of

_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Freezer:
    """The freezer of a container: the file that is written, and the values that pause and resume."""

    file: Path
    paused: str
    running: str

    def set_paused(self, paused: bool) -> bool:
        """Pause the container or let it continue; False if that failed.

        A system call in progress is completed first.
        """
        try:
            self.file.write_text(self.paused if paused else self.running, encoding="ascii")
        except OSError:
            return False
        return True


def pause(containers: Collection[str]) -> dict[str, bool]:
    """Pause the containers that have processes, including processes to come; returns for each whether it is paused."""
    return {container: _set_paused(pid, container, True) for container, pid in _one_process_of_each(containers).items()}


def unpause(containers: Collection[str]) -> None:
    """End the pause of those that are paused."""
    for container, pid in _one_process_of_each(containers).items():
        _set_paused(pid, container, False)


def _one_process_of_each(containers: Collection[str]) -> dict[str, int]:
    """One process of each of these containers that has any."""
    return {container: pid for pid, container in processes_of(containers).items()}


def _set_paused(pid: int, container: str, paused: bool) -> bool:
    with suppress(OSError):  # it has just ended
        freezer = freezer_of(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"), container)
        return freezer is not None and freezer.set_paused(paused)
    return True


def freezer_of(groups: str, container: str, mounted: Path = _GROUPS) -> Freezer | None:
    """The freezer of a container, by the control groups of one of its processes; None if there is none."""
    paths = {kinds: path for _, kinds, path in (line.split(":", 2) for line in groups.splitlines())}
    for kinds, folder, file, paused, running in (
        ("freezer", mounted / "freezer", "freezer.state", "FROZEN", "THAWED"),
        ("", mounted, "cgroup.freeze", "1", "0"),
    ):
        steps = paths.get(kinds, "").split("/")
        depth = next((at for at, step in enumerate(steps, start=1) if container in step), 0)
        place = folder.joinpath(*steps[1:depth], file)
        if depth and place.is_file():
            return Freezer(place, paused, running)
    return None
