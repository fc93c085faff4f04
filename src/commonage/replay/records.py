"""What once ran, as the replay needs it: who asked for what and when, and how long it took.

Read from a file of a trace here, from our own history in `history`; played by `run`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import GpuRequest, Request

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
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            lacking = [name for name in NEEDED if name not in columns]
            if lacking:
                raise InvalidInput(
                    f"{path} has no column {', '.join(lacking)}, so it cannot be replayed; it has: "
                    f"{', '.join(columns) or 'nothing'}",
                    field="trace",
                )
            rows = list(reader)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", field="trace") from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput(f"{path} is not a CSV file", field="trace") from None
    return _records(rows, path)


def _records(rows: Sequence[Mapping[str, str]], path: Path) -> Records:
    found: list[Record] = []
    unstarted = 0
    for number, row in enumerate(rows, start=2):
        if not row["scheduled_time"]:
            unstarted += 1
            continue
        try:
            found.append(_record(row))
        except (TypeError, ValueError):
            raise InvalidInput(f"{path}, line {number}: not all of it are numbers", field="trace") from None
    if not found:
        raise InvalidInput(f"{path} has no workload that ever started", field="trace")
    notes = [f"{unstarted} that never started there are left out: nobody knows how long they take"] if unstarted else []
    return Records(tuple(by_submission(found)), tuple(notes))


def by_submission(records: Iterable[Record]) -> list[Record]:
    """In the order in which they came."""
    return sorted(records, key=lambda one: (one.submitted_at, one.id))


def _record(row: Mapping[str, str]) -> Record:
    cards, share = int(row["num_gpu"]), int(row["gpu_milli"])
    submitted, started, ended = (float(row[name]) for name in ("creation_time", "scheduled_time", "deletion_time"))
    model = row.get("gpu_spec") or None
    gpu = None
    if cards:
        part = GpuRequest(fraction_milli=share, model=model)
        gpu = GpuRequest(whole=cards, model=model) if cards > 1 or share >= 1000 else part
    who = (row.get("qos") or "everybody").lower()
    return Record(
        id=row["name"],
        owner=who,
        tenant=who,
        request=Request(int(float(row["cpu_milli"])), int(float(row["memory_mib"])), gpu),
        submitted_at=submitted,
        duration_s=max(1.0, ended - started),
        waited_s=max(0.0, started - submitted),
    )
