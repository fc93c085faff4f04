"""`retention`: a year of ended workloads, deleted day by day by the retention loop: size of the file, lists, pauses.

Rows of one day are written by the store; the other days are copies of them with ids and times of their own, in one
transaction for each day. The loop, its settings and its writer are the server's.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.report import Figure, as_json, progress, show
from commonage.control.loops.retention import RetentionLoop
from commonage.control.settings import Retention
from commonage.control.state.feed import Feed
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.usage import DAY_S, Usage
from commonage.domain.workloads import IdSequence, State, Workload
from commonage.ports.store import Batch, Filter
from commonage.store.sql_store import SqlStore
from commonage.store.upgrade import upgrade
from commonage.store.urls import sqlite_url
from commonage.testing import factories as make

FIRST_DAY = int(make.NOW // DAY_S) + 1
EVENTS_EACH = 6
LISTS = {
    "a page of 100": Filter(),
    "a page of one owner": Filter(owner="user-3"),
    "a page of failed ones of one owner": Filter(owner="user-3", states=[State.FAILED]),
    "a page by name": Filter(text="train-12"),
}
REPORTED_DAYS = 30
_TIMES = {"submitted_at", "since", "allocated_at", "started_at", "ended_at", "began_at", "at"}
_IDS = {"id", "workload_id", "attempt_id", "spec_id"}


@dataclass
class _Clock:
    """Time that the benchmark sets; pauses between batches take none."""

    time: float = field(default=FIRST_DAY * float(DAY_S))

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@click.command
@click.option("--per-day", type=click.IntRange(10), default=1000, show_default=True, help="Workloads of a day.")
@click.option("--days", type=click.IntRange(2), default=365, show_default=True, help="Days to generate.")
@as_json
def retention(per_day: int, days: int, as_json: bool) -> None:
    """A year of workloads with the default retention: size of the database, lists, and the pauses of deletion.

    The database is in a temporary folder, see TMPDIR: 10,000 a day need 4 GB there.

    \b
    Example:
      python -m benchmarks retention
      TMPDIR=/var/tmp python -m benchmarks retention --per-day 10000
    """
    with tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
        figures = asyncio.run(_all(Path(folder) / "commonage.db", per_day, days))
    click.echo(show(f"Retention: {days} days of {per_day:,} workloads", figures, as_json=as_json))


async def _all(path: Path, per_day: int, days: int) -> list[Figure]:
    await upgrade(sqlite_url(path))
    store = _Timed(sqlite_url(path))
    await store.open()
    clock, live_state = _Clock(), LiveState()
    writer = Writer(store, live_state, Feed(), clock)
    loop = RetentionLoop(store, live_state, writer, clock, Retention())
    writing = asyncio.create_task(writer.run())
    try:
        await _write_first_day(store, per_day)
        before = await _lists(store, f"with {per_day:,} workloads, those of one day")
        with closing(sqlite3.connect(path, isolation_level=None)) as copier:
            copier.execute("PRAGMA synchronous=OFF")
            copier.execute("PRAGMA cache_size=-200000")
            template = {
                name: _rows(copier, name) for name in ("specs", "workloads", "attempts", "usage_reports", "events")
            }
            usage_of_day = await _year(store)
            sweeps: list[float] = []
            peak = 0
            months: list[Figure] = []
            for day in range(1, days):
                _copy_day(copier, template, day)
                clock.time = (FIRST_DAY + day + 1) * float(DAY_S)
                begun = time.perf_counter()
                await loop.sweep()
                sweeps.append(time.perf_counter() - begun)
                peak = max(peak, _mib(path))
                if (day + 1) % REPORTED_DAYS == 0:
                    months += await _month(store, path, day + 1, sweeps[-1])
        kept = sum((await store.count(Filter())).values())
        begun = time.perf_counter()
        usage = await _year(store)
        year_ms = (time.perf_counter() - begun) * 1000
        expected = days * usage_of_day.cpu_h
        after = await _lists(store, f"with {kept:,} workloads")
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await store.close()
    return [
        Figure(
            "database, at most",
            peak,
            "MiB",
            "with its write-ahead log; without samples, which have a file of their own",
        ),
        Figure("workloads in it at the end", kept, "", f"of {days * per_day:,}"),
        Figure(
            "deletion of a day", median(sweeps[-10:]), "s", f"in batches; median of 10, longest {max(sweeps):.3g} s"
        ),
        Figure("longest transaction of it", max(store.taken) * 1000, "ms", f"of {len(store.taken):,}"),
        Figure("usage of the year", year_ms, "ms", f"{usage.cpu_h / expected:.9f} of the hours that were held"),
        *before,
        *months,
        *after,
    ]


async def _month(store: SqlStore, path: Path, days: int, swept_s: float) -> list[Figure]:
    size, lists = _mib(path), await _lists(store, f"after {days} days")
    medians = ", ".join(f"{one.value:.1f}" for one in lists)
    progress(f"{days} days: {size:,} MiB, the last swept in {swept_s:.2f} s; lists {medians} ms")
    return [Figure(f"database after {days} days", size, "MiB", f"lists in the order above: {medians} ms")]


class _Timed(SqlStore):
    """Records the duration of each deletion."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.taken = [0.0]

    async def commit(self, batch: Batch) -> None:
        begun = time.perf_counter()
        await super().commit(batch)
        if batch.expired or batch.expired_events:
            self.taken.append(time.perf_counter() - begun)


async def _write_first_day(store: SqlStore, number: int) -> None:
    ids = IdSequence()
    for first in range(0, number, 500):
        workloads = [_ended(ids, index, number) for index in range(first, min(number, first + 500))]
        events = [
            replace(make.event(EVENTS_EACH * (first + index) + step + 1, each), at=each.submitted_at + step)
            for index, each in enumerate(workloads)
            for step in range(EVENTS_EACH)
        ]
        reports = [make.usage_report(each, 1) for each in workloads]
        await store.commit(Batch(workloads, events=events, usage_reports=reports))


def _ended(ids: IdSequence, number: int, of: int) -> Workload:
    """One of a day: submitted at its part of it, ended within an hour. Every 21st failed."""
    at = FIRST_DAY * DAY_S + number * (DAY_S - 4000) / of
    state = State.FAILED if number % 21 == 0 else State.SUCCEEDED
    base = make.workload(
        state,
        id=ids.next(at, number),
        name=f"train-{number}",
        owner=f"user-{number % 100}",
        tenant=f"lab-{number % 10}",
        environment=f"env-{number % 4}",
        gpus="6GiB",
        command=("python", "train.py", f"--seed={number}", "--data", "/data/imagenet", "--epochs", "90"),
    )
    attempt = base.attempt
    assert attempt is not None
    allocation = replace(
        attempt.allocation, node=f"node-{number % 50}", shares=(make.share(memory_mib=6144),), at=at + 5.0
    )
    ended = at + 60 + number % 3600
    attempt = replace(attempt, allocation=allocation, started_at=at + 6, ended_at=ended)
    return replace(base, attempt=attempt, submitted_at=at, since=ended)


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def _rows(connection: sqlite3.Connection, name: str) -> _Table:
    found = connection.execute(f"SELECT * FROM {name} ORDER BY 1")
    return _Table(name, [column[0] for column in found.description], found.fetchall())


def _copy_day(connection: sqlite3.Connection, template: dict[str, _Table], day: int) -> None:
    workloads, ids = template["workloads"], IdSequence()
    at = workloads.columns.index("submitted_at")
    new = {row[0]: ids.next(row[at] + day * DAY_S, number) for number, row in enumerate(workloads.rows)}
    events = len(template["events"].rows)

    def moved(column: str, value: Any) -> Any:
        if value is None:
            return None
        if column in _IDS:
            workload, dash, number = value.partition("-")
            return f"{new[workload]}{dash}{number}"
        if column in _TIMES:
            return value + day * DAY_S
        return value + day * events if column == "seq" else value

    connection.execute("BEGIN IMMEDIATE")
    for table in template.values():
        places = ", ".join("?" * len(table.columns))
        changing = [(index, column) for index, column in enumerate(table.columns) if column in _IDS | _TIMES | {"seq"}]

        def copied(row: Sequence[Any], changing: Sequence[tuple[int, str]] = changing) -> list[Any]:
            values = list(row)
            for index, column in changing:
                values[index] = moved(column, values[index])
            return values

        connection.executemany(f"INSERT INTO {table.name} VALUES ({places})", map(copied, table.rows))
    connection.execute("COMMIT")


async def _year(store: SqlStore) -> Usage:
    found = await store.usage(since=0, until=2 * make.NOW, by="tenant")
    total = Usage("all", 0, 0, 0, 0, 0)
    for one in found:
        total = replace(total, workloads=total.workloads + one.workloads, cpu_h=total.cpu_h + one.cpu_h)
    return total


async def _lists(store: SqlStore, how: str) -> list[Figure]:
    figures = []
    for name, which in LISTS.items():
        taken = []
        for _ in range(30):
            begun = time.perf_counter()
            await store.workloads(which, limit=100)
            taken.append((time.perf_counter() - begun) * 1000)
        figures.append(Figure(name, median(taken), "ms", f"{how}; the slowest of 30: {max(taken):.3g} ms"))
    return figures


def _mib(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*")) // 1024**2
