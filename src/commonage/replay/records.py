"""What once ran, as the replay needs it: who asked for what and when, and how long it took.

Read from a file of a trace here, from our own history in `history`; played by `run`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import GpuRequest, Request

T = TypeVar("T")

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


def request_of(row: Mapping[str, str]) -> Request:
    """What the workload of a row asks for. Raises ValueError where a number is none."""
    cards, share = int(row["num_gpu"]), int(row["gpu_milli"])
    gpu = None
    if cards:
        model = "|".join(name for name in (row.get("gpu_spec") or "").split("|") if name) or None
        part = cards == 1 and 0 < share < 1000
        gpu = GpuRequest(fraction_milli=share, model=model) if part else GpuRequest(whole=cards, model=model)
    return Request(int(row["cpu_milli"]), int(row["memory_mib"]), gpu)


def rows_of(path: Path, columns: tuple[str, ...], read: Callable[[Mapping[str, str]], T]) -> list[T]:
    """What `read` makes of each row of a file that has these columns. Raises InvalidInput that names the file."""
    found = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            lacking = [column for column in columns if column not in (reader.fieldnames or ())]
            if lacking:
                raise InvalidInput(f"{path} has no column {', '.join(lacking)}: is it a file of openb?", field="traces")
            for row in reader:
                found.append(read(row))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", field="traces") from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput(f"{path} is not a CSV file", field="traces") from None
    except (TypeError, ValueError):
        raise InvalidInput(f"{path}, line {len(found) + 2}: a number is wanted, and is none", field="traces") from None
    return found
