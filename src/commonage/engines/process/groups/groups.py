"""Port for grouping the processes of an attempt: control groups if the kernel allows it, else a mark they carry.

`ProcessEngine._find_groups` chooses; the engine sees only `Groups`. Methods may block briefly and are called in
threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from commonage.domain.reasons import Reason
from commonage.domain.statuses import LastUse


@dataclass(frozen=True, slots=True)
class Use:
    """Current usage of an attempt.

    CPU seconds so far and memory in MiB, without what the kernel could reclaim at once.
    """

    cpu_s: float
    memory_mib: int
    pids: tuple[int, ...]


class Groups(Protocol):
    """The processes of attempts, by attempt id. An unknown id has none."""

    limits_memory: bool
    limits_cpu: bool
    notes: tuple[Reason, ...]

    def make(self, attempt_id: str, cpus_milli: int, memory_mib: int) -> list[str]:
        """Prepare for an attempt; return the cgroup.procs files to join. Raises EngineFailure."""

    def joins(self, attempt_id: str) -> list[str]:
        """The cgroup.procs files of a running attempt, which its exec commands must also join."""

    def pids(self, attempt_id: str) -> list[int]:
        """All its processes, except the shim."""

    def kill(self, attempt_id: str) -> bool:
        """Send SIGKILL to all its processes. False if some are still there, which a later call may find gone."""

    def was_oom(self, attempt_id: str) -> bool:
        """True if the kernel killed one of its processes for lack of memory."""

    def use(self, attempt_id: str) -> Use | None:
        """Its usage; None if it has no processes."""

    def last_use(self, attempt_id: str) -> LastUse | None:
        """Its total usage; None if that is unknown once its processes are gone."""
        return None

    def remove(self, attempt_id: str) -> bool:
        """Remove everything after its last process ended. False if one is still there."""

    def close(self) -> None:
        """Stop; attempts that run stay limited."""
        return
