"""`store`: commits of several sizes to the store alone, and pages and counts of many workloads."""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Literal

import click

from benchmarks.report import Figure, as_json, progress, show
from commonage.domain.workloads import Event, Kind, State, Workload
from commonage.ports.store import Batch, Filter
from commonage.store.sql_store import SqlStore
from commonage.store.upgrade import upgrade
from commonage.store.urls import sqlite_url
from commonage.testing import factories as make

FILTERS = {
    "all": Filter(),
    "owner": Filter(owner="user-3"),
    "owner, few": Filter(owner="rare"),
    "states queued, running": Filter(states=[State.QUEUED, State.RUNNING]),
    "state running, few": Filter(states=[State.RUNNING]),
    "owner and state": Filter(owner="user-3", states=[State.QUEUED]),
    "kind session, few": Filter(kinds=[Kind.SESSION]),
    "environment": Filter(environment="env-2"),
    "environment, owner, state": Filter(environment="env-2", owner="user-3", states=[State.SUCCEEDED]),
    "environment and owner that never meet": Filter(environment="env-1", owner="user-2"),
    "node": Filter(node="node-3"),
    "node and state": Filter(node="node-3", states=[State.RUNNING]),
    "array": Filter(array_id="none"),
    "text, many": Filter(text="train"),
    "text, none": Filter(text="no such name"),
    "text, none, of an owner": Filter(text="no such name", owner="user-3"),
    "submitted lately": Filter(submitted_after=make.NOW + 10**9),
}
_seqs = count(1)


@click.command
@click.option("--url", default="", help="An empty database.  [default: SQLite in a temporary folder, see TMPDIR]")
@click.option(
    "--most", type=click.IntRange(10_000), default=100_000, show_default=True, help="Workloads to read out of at last."
)
@as_json
def store(url: str, most: int, as_json: bool) -> None:
    """Commits of several sizes, and reads out of 10,000 workloads and more.

    \b
    Example:
      python -m benchmarks store
      python -m benchmarks store --url postgresql+asyncpg://user:password@127.0.0.1/empty --most 50000
    """
    with tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
        figures = asyncio.run(_all(url or sqlite_url(Path(folder) / "commonage.db"), most))
    click.echo(show("The store", figures, as_json=as_json))


async def _all(url: str, most: int) -> list[Figure]:
    await upgrade(url)
    store = SqlStore(url)
    await store.open()
    try:
        progress("commits")
        figures = await _commits(store)
        there = sum((await store.count(Filter())).values())
        for total in dict.fromkeys((10_000, most)):
            progress(f"reads out of {total:,}")
            while there < total:
                workloads = [_job(there + index) for index in range(min(1000, total - there))]
                await store.commit(Batch(inserts=workloads, events=_events(workloads)))
                there += len(workloads)
            figures += await _reads(store, total)
    finally:
        await store.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [*figures, Figure("most memory", memory, "MiB", "of this process, including the client of the store")]


def _job(number: int) -> Workload:
    state = State.QUEUED if number % 4 else State.SUCCEEDED
    owner = "rare" if number % 5000 == 7 else f"user-{number % 10}"
    kind = Kind.SESSION if number % 1000 == 1 else Kind.JOB
    if number % 500 == 3:
        state = State.RUNNING
    workload = make.workload(
        state, name=f"train-{number}", owner=owner, kind=kind, environment=f"env-{number % 4}", gpus="6GiB"
    )
    if workload.attempt is None:
        return workload
    allocation = replace(workload.attempt.allocation, node=f"node-{number % 7}", shares=(make.share(memory_mib=6144),))
    return replace(workload, attempt=replace(workload.attempt, allocation=allocation))


def _events(workloads: list[Workload]) -> list[Event]:
    return [make.event(next(_seqs), each) for each in workloads]


async def _timed(name: str, times: int, work: Callable[[], Awaitable[object]]) -> Figure:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - begun) * 1000)
    return Figure(name, median(taken), "ms", f"median of {times}, the slowest {max(taken):.4g} ms")


async def _commits(store: SqlStore) -> list[Figure]:
    numbers = count(1)

    async def some(size: int) -> None:
        workloads = [_job(next(numbers)) for _ in range(size)]
        await store.commit(Batch(inserts=workloads, events=_events(workloads)))

    async def array() -> None:
        workloads = make.array(1000, owner="user-1", environment="env-0")
        await store.commit(Batch(inserts=workloads, events=_events(workloads[:1])))

    figures = [
        await _timed("commit 1 insert, 1 event", 100, lambda: some(1)),
        await _timed("commit 100 inserts, 100 events", 20, lambda: some(100)),
        await _timed("commit an array of 1,000, 1 event", 10, array),
    ]
    living = list(await store.live())[:500]

    async def mixed() -> None:
        new = [_job(next(numbers)) for _ in range(500)]
        living[:] = [make.changed(each, state=State.RUNNING, attempt=make.attempt(each.id, 1)) for each in living]
        await store.commit(Batch(inserts=new, updates=living, events=_events(new + living)))

    figures.append(await _timed("commit 500 inserts, 500 updates, 1,000 events", 10, mixed))

    async def one_update() -> None:
        living[0] = make.changed(living[0])
        await store.commit(Batch(updates=living[:1], events=_events(living[:1])))

    figures.append(await _timed("commit 1 update with attempt, 1 event", 100, one_update))
    return figures


async def _reads(store: SqlStore, total: int) -> list[Figure]:
    page = await store.workloads(Filter(), limit=100)

    def page_of(which: Filter) -> Callable[[], Awaitable[object]]:
        return lambda: store.workloads(which, limit=100)

    def usage_by(by: Literal["owner", "workload"], since: float, until: float) -> Callable[[], Awaitable[object]]:
        return lambda: store.usage(since=since, until=until, by=by)

    lately, soon = make.NOW - 60, make.NOW + 3600
    reads: list[tuple[str, int, Callable[[], Awaitable[object]]]] = [
        *((f"page of 100: {name}", 10, page_of(which)) for name, which in FILTERS.items()),
        ("one", 20, lambda: store.workload(page.items[0].id)),
        ("counts by state", 5, lambda: store.count(Filter())),
        ("counts by state of an owner", 5, lambda: store.count(Filter(owner="user-3"))),
        ("usage by owner", 3, usage_by("owner", lately, soon)),
        ("usage by workload", 3, usage_by("workload", lately, soon)),
        ("usage by owner, window without any", 3, usage_by("owner", 2e9, 2.1e9)),
        ("events of one", 10, lambda: store.events(workload_id=page.items[0].id)),
        ("live", 1, store.live),
    ]
    return [await _timed(f"{total:,}: {name}", times, work) for name, times, work in reads]
