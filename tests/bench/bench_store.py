"""What the store costs: commits of several sizes, pages and counts out of many. Prints figures, judges nothing.

    python tests/bench/bench_store.py [--url postgresql://…] [--most 100000]

Without a URL a database of SQLite is made beside the other temporary files, on a real disk if TMPDIR names one.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from commonage.domain.events import Event
from commonage.domain.workloads import Kind, State, Workload
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


def a_job(number: int) -> Workload:
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
    lease = replace(workload.attempt.lease, node=f"node-{number % 7}", shares=(make.share(memory_mib=6144),))
    return replace(workload, attempt=replace(workload.attempt, lease=lease))


def told(workloads: list[Workload]) -> list[Event]:
    return [make.event(next(_seqs), each) for each in workloads]


async def timed(what: str, times: int, work: Callable[[], Awaitable[object]]) -> None:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - begun) * 1000)
    taken.sort()
    print(f"  {what:42} median {statistics.median(taken):8.2f} ms   worst {taken[-1]:8.2f} ms   of {times}")


async def commits(store: SqlStore) -> None:
    print("commits")
    numbers = count(1)

    async def some(size: int) -> None:
        workloads = [a_job(next(numbers)) for _ in range(size)]
        await store.commit(Batch(inserts=workloads, events=told(workloads)))

    async def array() -> None:
        workloads = make.array(1000, owner="user-1", environment="env-0")
        await store.commit(Batch(inserts=workloads, events=told(workloads[:1])))

    await timed("1 insert, 1 event", 100, lambda: some(1))
    await timed("100 inserts, 100 events", 20, lambda: some(100))
    await timed("array of 1,000, 1 event", 10, array)
    living = list(await store.live())[:500]

    async def mixed() -> None:
        new = [a_job(next(numbers)) for _ in range(500)]
        living[:] = [make.changed(each, state=State.RUNNING, attempt=make.attempt(each.id, 1)) for each in living]
        await store.commit(Batch(inserts=new, updates=living, events=told(new + living)))

    await timed("500 inserts, 500 updates, 1,000 events", 10, mixed)

    async def one_update() -> None:
        living[0] = make.changed(living[0])
        await store.commit(Batch(updates=living[:1], events=told(living[:1])))

    await timed("1 update with attempt, 1 event", 100, one_update)


async def reads(store: SqlStore, total: int) -> None:
    print(f"reads out of {total:,}")
    for name, which in FILTERS.items():
        await timed(f"page of 100: {name}", 10, lambda which=which: store.workloads(which, limit=100))
    page = await store.workloads(Filter(), limit=100)
    await timed("one", 20, lambda: store.workload(page.items[0].id))
    await timed("counts by state", 5, lambda: store.count(Filter()))
    await timed("counts by state of an owner", 5, lambda: store.count(Filter(owner="user-3")))
    for by in ("owner", "workload"):
        await timed(f"usage by {by}", 3, lambda by=by: store.usage(since=make.NOW - 60, until=make.NOW + 3600, by=by))
    await timed("usage by owner, window without any", 3, lambda: store.usage(since=2e9, until=2.1e9, by="owner"))
    await timed("events of one", 10, lambda: store.events(workload_id=page.items[0].id))
    await timed("live", 1, store.live)


@contextmanager
def a_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
        yield sqlite_url(Path(folder) / "commonage.db")


async def run(url: str, most: int) -> None:
    await upgrade(url)
    store = SqlStore(url)
    await store.open()
    try:
        await commits(store)
        there = sum((await store.count(Filter())).values())
        for total in (10_000, most):
            while there < total:
                workloads = [a_job(there + index) for index in range(min(1000, total - there))]
                await store.commit(Batch(inserts=workloads, events=told(workloads)))
                there += len(workloads)
            await reads(store, total)
    finally:
        await store.close()
    print(f"most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="an empty database; a file of SQLite by default")
    parser.add_argument("--most", type=int, default=100_000, help="how many workloads to read out of at last")
    asked = parser.parse_args()
    if asked.url:
        asyncio.run(run(asked.url, asked.most))
        return
    with a_file() as url:
        asyncio.run(run(url, asked.most))


if __name__ == "__main__":
    main()
