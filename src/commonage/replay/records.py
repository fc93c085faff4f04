"""What once ran, as the replay needs it: who asked for what and when, and how long it took.

Read from a file of a trace here, from our own history in `history`; played by `run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import Request
from commonage.replay.openb import request_of, rows_of

NEEDED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")


@dataclass(frozen=True, slots=True)
class Record:
    """One workload of the past. Instants and durations in seconds; `waited_s` is what it waited then, if that is known.

    `time_limit_s` is what the planner may know of its length; `duration_s` only time itself tells.
    """

    id: str
    owner: str
    tenant: str
    request: Request
    submitted_at: float
    duration_s: float
    kind: str = "job"
    environment: str = ""
    priority: int = 0
    preemptible: bool = False
    time_limit_s: int | None = None
    waited_s: float | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """Workloads by the time they were submitted, and what of the source could not be used, in words."""

    items: tuple[Record, ...]
    notes: tuple[str, ...] = ()

    def of_the_last(self, seconds: float | None) -> Records:
        """Those submitted within so many seconds before the last one."""
        if seconds is None or not self.items:
            return self
        first = self.items[-1].submitted_at - seconds
        return replace(self, items=tuple(one for one in self.items if one.submitted_at >= first))

    def with_limits(self, factor: float | None) -> Records:
        """The same, each with a time limit of `factor` times its length where it has none (None: as it is)."""
        if factor is None:
            return self
        limited = (
            one if one.time_limit_s is not None else replace(one, time_limit_s=max(60, round(one.duration_s * factor)))
            for one in self.items
        )
        return replace(self, items=tuple(limited))


def read_trace(path: Path) -> Records:
    """The workloads of a file in the columns of the public openb trace (cluster-trace-gpu-v2023), with its times.

    Its `qos` becomes the tenant and owner. Raises InvalidInput that names the file and what is wrong with it.
    """
    found = rows_of(path, NEEDED, _record)
    started = [record for record in found if record is not None]
    if not started:
        raise InvalidInput(f"{path} has no workload that ever started", field="traces")
    return Records(tuple(by_submission(started)), left_out(len(found) - len(started)))


def left_out(unstarted: int) -> tuple[str, ...]:
    """What is said of those that never started."""
    if not unstarted:
        return ()
    return (f"{unstarted} that never started are left out: nobody knows how long they take",)


def by_submission(records: Iterable[Record]) -> list[Record]:
    """In the order in which they came."""
    return sorted(records, key=lambda one: (one.submitted_at, one.id))


def _record(row: Mapping[str, str]) -> Record | None:
    if row["scheduled_time"] == "":
        return None
    submitted, started, ended = (float(row[name]) for name in ("creation_time", "scheduled_time", "deletion_time"))
    who = (row.get("qos") or "everybody").lower()
    return Record(
        id=row["name"],
        owner=who,
        tenant=who,
        request=request_of(row),
        submitted_at=submitted,
        duration_s=max(1.0, ended - started),
        waited_s=max(0.0, started - submitted),
    )
