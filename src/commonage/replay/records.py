"""Past workloads as the replay needs them: owner, request, time of submission and duration.

Read from a trace file here, from the store in `history`; played by `play`.
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
    """One workload of the past. Instants and durations in seconds; `waited_s` is its wait at the time, if known.

    `time_limit_s` is known to the planner; `duration_s` is not.
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
    """Workloads by the time of submission, and notes on the parts of the source that could not be used."""

    items: tuple[Record, ...]
    notes: tuple[str, ...] = ()

    def of_the_last(self, seconds: float | None) -> Records:
        """The records submitted in the last `seconds` before the last one."""
        if seconds is None or not self.items:
            return self
        first = self.items[-1].submitted_at - seconds
        return replace(self, items=tuple(one for one in self.items if one.submitted_at >= first))

    def with_limits(self, factor: float | None) -> Records:
        """The same, each without a time limit given one of `factor` times its duration (None: unchanged)."""
        if factor is None:
            return self
        limited = (
            one if one.time_limit_s is not None else replace(one, time_limit_s=max(60, round(one.duration_s * factor)))
            for one in self.items
        )
        return replace(self, items=tuple(limited))


def read_trace(path: Path) -> Records:
    """The workloads of a file in the columns of the public openb trace (cluster-trace-gpu-v2023), with its times.

    Its `qos` becomes the tenant and owner. Raises InvalidInput, which names the file and its fault.
    """
    found = rows_of(path, NEEDED, _record)
    started = [record for record in found if record is not None]
    if not started:
        raise InvalidInput(f"{path} has no workload that ever started", field="traces")
    return Records(tuple(by_submission(started)), left_out(len(found) - len(started)))


def left_out(unstarted: int) -> tuple[str, ...]:
    """The note on the workloads that never started."""
    if not unstarted:
        return ()
    return (f"{unstarted} that never started are left out: nobody knows how long they take",)


def by_submission(records: Iterable[Record]) -> list[Record]:
    """The records in order of submission."""
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
    """The request of the workload in a row. Raises ValueError for an invalid number."""
    devices, share = int(row["num_gpu"]), int(row["gpu_milli"])
    gpu = None
    if devices:
        model = "|".join(name for name in (row.get("gpu_spec") or "").split("|") if name) or None
        part = devices == 1 and 0 < share < 1000
        gpu = GpuRequest(fraction_milli=share, model=model) if part else GpuRequest(whole=devices, model=model)
    return Request(int(row["cpu_milli"]), int(row["memory_mib"]), gpu)


def rows_of(path: Path, columns: tuple[str, ...], read: Callable[[Mapping[str, str]], T]) -> list[T]:
    """The results of `read` for each row of a file with these columns. Raises InvalidInput, which names the file."""
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
