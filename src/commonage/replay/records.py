"""Past workloads for a replay, read from a trace file or from the store."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import GpuRequest, Request
from commonage.domain.workloads import TERMINAL, Workload
from commonage.ports.store import Filter, Store

T = TypeVar("T")

NEEDED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """A past workload. Times and durations are in seconds; `waited_s` is the wait that was recorded, if known.

    `time_limit_s` is known to the scheduler; `duration_s` is not.
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
    """Workloads ordered by submission, and notes on parts of the source that were not usable."""

    items: tuple[Record, ...]
    notes: tuple[str, ...] = ()

    def of_the_last(self, seconds: float | None) -> Records:
        """The records submitted within `seconds` before the last one."""
        if seconds is None or not self.items:
            return self
        first = self.items[-1].submitted_at - seconds
        return replace(self, items=tuple(record for record in self.items if record.submitted_at >= first))

    def with_limits(self, factor: float | None) -> Records:
        """Adds time limits of `factor` times the duration to records without one (None: unchanged)."""
        if factor is None:
            return self
        limited = (
            record
            if record.time_limit_s is not None
            else replace(record, time_limit_s=max(60, round(record.duration_s * factor)))
            for record in self.items
        )
        return replace(self, items=tuple(limited))


def read_trace(path: Path) -> Records:
    """The workloads of a CSV file with the columns of the public openb trace (cluster-trace-gpu-v2023).

    `qos` becomes the tenant and the owner. Raises InvalidInput, which names the file and the error.
    """
    records = rows_of(path, NEEDED, _record)
    started = [record for record in records if record is not None]
    if not started:
        raise InvalidInput(f"{path} has no workload that started", field="traces")
    return Records(tuple(by_submission(started)), left_out(len(records) - len(started)))


async def read_history(store: Store, *, since: float | None = None) -> Records:
    """All workloads submitted since then (unix seconds; None: ever) that started and ended."""
    ended: list[Record] = []
    unstarted = 0
    cursor = None
    while True:
        page = await store.workloads(Filter(states=TERMINAL, submitted_after=since), limit=PAGE_SIZE, cursor=cursor)
        records = [record_of(workload) for workload in page.items]
        ended += [record for record in records if record is not None]
        unstarted += sum(record is None for record in records)
        cursor = page.next_cursor
        if cursor is None:
            break
    return Records(tuple(by_submission(ended)), left_out(unstarted))


def record_of(workload: Workload) -> Record | None:
    """The record of its last attempt; None without an attempt, or before its end."""
    attempt, spec = workload.attempt, workload.spec
    if attempt is None or attempt.ended_at is None:
        return None
    began = attempt.started_at or attempt.allocation.at
    return Record(
        id=workload.id,
        owner=spec.owner,
        tenant=spec.tenant,
        request=spec.request,
        submitted_at=workload.submitted_at,
        duration_s=max(1.0, attempt.ended_at - began),
        kind=spec.kind,
        environment=spec.environment,
        priority=spec.priority,
        preemptible=spec.preemptible,
        time_limit_s=spec.time_limit_s,
        waited_s=max(0.0, attempt.allocation.at - workload.submitted_at) if attempt.number == 1 else None,
    )


def left_out(unstarted: int) -> tuple[str, ...]:
    if not unstarted:
        return ()
    return (f"{unstarted} workloads that never started are omitted: their durations are unknown",)


def by_submission(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (record.submitted_at, record.id))


def _record(row: Mapping[str, str]) -> Record | None:
    if row["scheduled_time"] == "":
        return None
    submitted, started, ended = (float(row[name]) for name in ("creation_time", "scheduled_time", "deletion_time"))
    account = (row.get("qos") or "everybody").lower()
    return Record(
        id=row["name"],
        owner=account,
        tenant=account,
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
    """The results of `read` for each row of a CSV file. Raises InvalidInput, which names the file."""
    results = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise InvalidInput(
                    f"{path} has no column {', '.join(missing)}: is it a file of the openb trace?", field="traces"
                )
            for row in reader:
                results.append(read(row))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", field="traces") from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput(f"{path} is not a CSV file", field="traces") from None
    except (TypeError, ValueError):
        raise InvalidInput(f"{path}, line {len(results) + 2}: expected a number", field="traces") from None
    return results
