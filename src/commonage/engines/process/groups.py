"""What holds the processes of an attempt together: control groups where the kernel lets us, else a mark they carry.

`find_groups` chooses; the engine sees only `Groups`. Methods may block a little and are called in threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from commonage.domain.sightings import LastUse


@dataclass(frozen=True, slots=True)
class Use:
    """What an attempt uses now.

    CPU seconds so far and memory in MiB, without what the kernel could drop at once.
    """

    cpu_s: float
    memory_mib: int
    pids: tuple[int, ...]


class Groups(Protocol):
    """The processes of attempts, by attempt id. An unknown id has none."""

    limits_memory: bool
    limits_cpu: bool
    notes: tuple[str, ...]

    def make(self, attempt_id: str, cpus_milli: int, memory_mib: int) -> list[str]:
        """Prepare for an attempt; gives the cgroup.procs files that it shall join. Raises EngineFailure."""
        ...

    def joins(self, attempt_id: str) -> list[str]:
        """The cgroup.procs files of one that runs, which what runs beside it shall join, too."""
        ...

    def pids(self, attempt_id: str) -> list[int]:
        """All its processes, the shim excepted."""
        ...

    def kill(self, attempt_id: str) -> bool:
        """End all its processes by force. False if some are still there, which a later call may find gone."""
        ...

    def was_oom(self, attempt_id: str) -> bool:
        """True if the kernel ended one of its processes for want of memory."""
        ...

    def use(self, attempt_id: str) -> Use | None:
        """What it uses; None if it has no processes."""
        ...

    def last_use(self, attempt_id: str) -> LastUse | None:
        """What it used in all; None where that is not known once its processes are gone."""
        return None

    def remove(self, attempt_id: str) -> bool:
        """Its last process ended: nothing of it stays. False if one is still there."""
        ...

    def close(self) -> None:
        """Nothing is asked any more; what runs stays held."""
        return
