"""The SQL store beyond the port: durability, private files, translated errors."""

import asyncio
import signal
import sqlite3
import stat
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Executable, text
from sqlalchemy.engine import Connection

from commonage.domain.errors import Conflict, Unavailable
from commonage.domain.workloads import State
from commonage.ports.store import Batch, Filter
from commonage.store.database import connect
from commonage.store.sql_store import SqlStore
from commonage.store.upgrade import upgrade
from commonage.store.urls import database_url, sqlite_url
from commonage.testing import factories as make

pytestmark = pytest.mark.anyio

WRITER = """
import asyncio, sys, time
from commonage.ports.store import Batch
from commonage.store.sql_store import SqlStore
from commonage.testing import factories as make

async def main():
    store = SqlStore(sys.argv[1])
    await store.open()
    while True:
        batch = [make.workload(id=make.workload_id(time.time())) for _ in range(20)]
        await store.commit(Batch(batch))
        print(*(each.id for each in batch), flush=True)

asyncio.run(main())
"""


DELETER = """
import asyncio, sys
from commonage.ports.store import Batch
from commonage.store.sql_store import SqlStore

async def main():
    store = SqlStore(sys.argv[1])
    await store.open()
    while found := await store.expired(before=1e12, needed=(), limit=3):
        print("next", flush=True)
        await store.commit(Batch(expired=list(found)))

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "commonage.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqlStore]:
    await upgrade(sqlite_url(path))
    store = SqlStore(sqlite_url(path))
    await store.open()
    yield store
    await store.close()


async def test_what_was_acknowledged_survives_a_kill(store: SqlStore, path: Path) -> None:
    acknowledged: set[str] = set()
    for _ in range(2):
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, sqlite_url(path), stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        lines = [await writer.stdout.readline() for _ in range(5)]
        writer.send_signal(signal.SIGKILL)
        rest, _ = await writer.communicate()
        lines += [line for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]
        acknowledged |= {name for line in lines for name in line.decode().split()}
        there = {each.id for each in await store.live()}
        assert acknowledged and acknowledged <= there
        assert len(there) % 20 == 0


async def test_files_are_their_owners_alone(store: SqlStore, path: Path) -> None:
    await store.commit(Batch([make.workload()]))
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


async def test_secrets_stand_apart_and_go(store: SqlStore, path: Path) -> None:
    workload = make.workload(secrets=(("TOKEN", "hush-hush"),))
    await store.commit(Batch([workload]))

    def where_it_stands() -> list[str]:
        reader = sqlite3.connect(path)
        names = [row[0] for row in reader.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = [name for name in names if "hush-hush" in str(reader.execute(f"SELECT * FROM {name}").fetchall())]
        reader.close()
        return found

    assert where_it_stands() == ["secrets"]
    await store.commit(Batch(updates=[make.changed(workload, state=State.STOPPED)]))
    assert where_it_stands() == []
    await store.close()  # the write-ahead log ends with the last connection
    assert b"hush-hush" not in path.read_bytes()


async def test_secrets_are_in_no_error(store: SqlStore) -> None:
    value = "-".join(["hush"] * 2)  # not in the source, which a traceback shows
    workload = make.workload(secrets=(("TOKEN", value),))
    await store.commit(Batch([workload]))
    with pytest.raises(Conflict) as caught:
        await store.commit(Batch([workload]))
    assert value not in "".join(traceback.format_exception(caught.value))


async def test_members_of_an_array_share_one_spec_in_memory(store: SqlStore) -> None:
    await store.commit(Batch([*make.array(10, secrets=(("A", "b"),)), *make.array(10)]))
    assert len({id(each.spec) for each in await store.live()}) == 2
    assert len({id(each.spec) for each in (await store.workloads(Filter(), limit=20)).items}) == 2


async def test_reads_the_spec_of_an_array_once(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * 10_000
    await store.commit(Batch(make.array(50, variables=(("A", long),))))
    database = store._parts.database
    read, characters = database.read, 0

    async def counted(statement: Executable) -> Sequence[Sequence[Any]]:
        nonlocal characters
        rows = await read(statement)
        characters += sum(len(str(value)) for row in rows for value in row)
        return rows

    monkeypatch.setattr(database, "read", counted)
    assert len(await store.live()) == 50
    assert len(long) < characters < 5 * len(long)


async def test_database_that_was_not_made_is_refused(path: Path) -> None:
    with pytest.raises(Conflict, match="commonage db upgrade") as caught:
        await SqlStore(sqlite_url(path)).open()
    assert caught.value.problem_code == "database-outdated"


async def test_file_that_is_something_else(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("no database at all\n" * 100)
    with pytest.raises(Unavailable, match="damaged"):
        await SqlStore(sqlite_url(path)).open()


async def test_path_that_cannot_be(path: Path) -> None:
    path.parent.write_text("a file where the folder should be")
    with pytest.raises(Unavailable, match=r"cannot be written"):
        await upgrade(sqlite_url(path))


async def test_lock_of_another_program(store: SqlStore, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    database = connect(database_url(sqlite_url(path)), reconnect_timeout_s=0.05)
    with pytest.raises(Unavailable, match="locked by another program") as caught:
        await database.write(lambda connection: connection.execute(text("DELETE FROM nodes")))
    assert caught.value.is_retryable
    assert await store.nodes() == []  # readers are not kept waiting
    other.execute("ROLLBACK")
    other.close()
    await database.close()
    await store.commit(Batch([make.workload()]))


async def test_disk_that_is_full(store: SqlStore, path: Path) -> None:
    database = connect(database_url(sqlite_url(path)))

    def fill(connection: Connection) -> None:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()
        connection.execute(text(f"PRAGMA max_page_count = {pages}"))
        connection.execute(text("INSERT INTO specs VALUES ('x', :body)"), {"body": "x" * 1_000_000})

    with pytest.raises(Unavailable, match="is full: nothing new can be stored until there is room"):
        await database.write(fill)
    await database.close()
    await store.commit(Batch([make.workload()]))


async def test_commits_that_have_begun_end_before_it_closes(store: SqlStore) -> None:
    batches = [Batch([make.workload() for _ in range(50)]) for _ in range(5)]
    commits = [asyncio.ensure_future(store.commit(batch)) for batch in batches]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*commits)
    await store.open()
    assert len(await store.live()) == 250


async def test_server_that_does_not_answer() -> None:
    url = "postgresql://ann:hush@127.0.0.1:1/commonage"
    with pytest.raises(Unavailable, match="does not answer") as caught:
        await SqlStore(url).open()
    assert "hush" not in caught.value.message


@pytest.mark.needs("postgresql")
async def test_postgresql_that_goes_away_and_comes_back(postgres_url: str) -> None:
    await upgrade(postgres_url)
    store = SqlStore(postgres_url)
    await store.open()
    first = make.workload()
    await store.commit(Batch([first]))
    other = connect(database_url(postgres_url))
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
    await other.write(lambda connection: connection.execute(text(f"SELECT pg_terminate_backend(pid) {others}")))
    assert await store.live() == [first]
    await store.commit(Batch(updates=[replace(first, version=2)]))
    await other.close()
    await store.close()


@pytest.mark.needs("postgresql")
async def test_postgresql_user_without_a_password_that_fits(postgres_url: str) -> None:
    wrong = database_url(postgres_url).set(password="wrong-guess").render_as_string(hide_password=False)
    with pytest.raises(Unavailable) as caught:
        await SqlStore(wrong).open()
    assert "password authentication failed" in caught.value.message
    assert "wrong-guess" not in caught.value.message


async def test_totals_are_neither_lost_nor_doubled_by_a_kill_during_retention(store: SqlStore, path: Path) -> None:
    day = {"since": make.NOW - make.NOW % 86_400, "until": make.NOW - make.NOW % 86_400 + 2 * 86_400, "by": "owner"}
    await store.commit(Batch([make.workload(State.SUCCEEDED) for _ in range(150)]))
    [before] = await store.usage(**day)
    for _ in range(3):
        deleter = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DELETER, sqlite_url(path), stdout=subprocess.PIPE
        )
        assert deleter.stdout is not None
        for _ in range(5):
            await deleter.stdout.readline()
        deleter.send_signal(signal.SIGKILL)
        await deleter.communicate()
        [after] = await store.usage(**day)
        assert (after.workloads, after.cpu_h) == (before.workloads, pytest.approx(before.cpu_h))
    assert 0 < sum((await store.count(Filter())).values()) < 150


async def test_a_file_of_which_much_is_free_becomes_smaller(store: SqlStore, path: Path) -> None:
    for _ in range(10):
        await store.commit(Batch([make.workload(State.SUCCEEDED, name="x" * 4000) for _ in range(200)]))
    before = _size(path)
    assert await store.reclaim() is False, "nothing is free"
    while found := await store.expired(before=1e12, needed=(), limit=500):
        await store.commit(Batch(expired=list(found)))
    while await store.reclaim():
        pass
    assert _size(path) < before / 2


def _size(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute("PRAGMA wal_checkpoint").fetchall()
    return int(pages)
