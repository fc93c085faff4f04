"""The migrated schema is the declared one, on both databases; upgrading is safe at any time and any number of times."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.engine import Connection

from commonage.domain.errors import Conflict
from commonage.ports.store import Batch
from commonage.server.commands.db import db
from commonage.server.commands.doctor import doctor
from commonage.store.database import connect
from commonage.store.sql_store import SqlStore
from commonage.store.tables import metadata
from commonage.store.upgrade import check, upgrade
from commonage.store.urls import database_url, sqlite_url
from commonage.testing import factories as make

pytestmark = pytest.mark.anyio

OLDEST, HEAD = "0100", "0114"
UPGRADE = "import asyncio, sys; from commonage.store.upgrade import upgrade; asyncio.run(upgrade(sys.argv[1]))"

_SQLITE = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE tbl_name <> 'schema_version' ORDER BY name"
_POSTGRES = (
    """SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name
       FROM information_schema.columns
       WHERE table_schema = 'public' AND table_name <> 'schema_version' ORDER BY 1, 2""",
    """SELECT indexname, indexdef FROM pg_indexes
       WHERE schemaname = 'public' AND tablename <> 'schema_version' ORDER BY 1""",
    """SELECT conname, contype::text, pg_get_constraintdef(oid) FROM pg_constraint
       WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'schema_version' ORDER BY 1""",
)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield sqlite_url(tmp_path / "commonage.db")
    else:
        yield request.getfixturevalue("postgres_url")


async def run(url: str, *statements: str) -> list[Any]:
    """Execute; the rows of each. Spaces and quotes in SQL do not matter."""
    database = connect(database_url(url))

    def work(connection: Connection) -> list[Any]:
        results = [connection.execute(text(statement)) for statement in statements]
        return [[tuple(_even(value) for value in row) for row in each] for each in results if each.returns_rows]

    try:
        return await database.write(work)
    finally:
        await database.close()


def _even(value: Any) -> Any:
    return (
        " ".join(value.replace('"', "").replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split())
        if isinstance(value, str)
        else value
    )


async def schema(url: str) -> list[Any]:
    return await run(url, *((_SQLITE,) if url.startswith("sqlite") else _POSTGRES))


async def test_migrated_is_declared(url: str) -> None:
    await upgrade(url)
    migrated = await schema(url)
    drop = [f"DROP TABLE {table.name}" for table in reversed(metadata.sorted_tables)]
    await run(url, *drop)
    database = connect(database_url(url))
    await database.write(metadata.create_all)
    await database.close()
    assert await schema(url) == migrated


async def test_check_finds_nothing_after_an_upgrade(url: str) -> None:
    await upgrade(url)
    assert await check(url) == []


async def test_check_names_what_differs(url: str) -> None:
    assert await check(url) == [f"it is at schema none, this program needs {HEAD}: run `commonage db upgrade`"]
    await upgrade(url)
    await run(url, "DROP INDEX ix_events_owner_seq", "ALTER TABLE nodes ADD COLUMN colour TEXT", "DROP TABLE secrets")
    words = " / ".join(await check(url))
    assert "ix_events_owner_seq" in words
    assert "colour" in words
    assert "secrets" in words


async def test_check_leaves_tables_of_others_alone(url: str) -> None:
    await upgrade(url)
    await run(url, "CREATE TABLE somebody_elses (x TEXT)")
    assert await check(url) == []


async def test_upgrading_again_changes_nothing_and_loses_nothing(url: str) -> None:
    await upgrade(url)
    before = await schema(url)
    store = SqlStore(url)
    await store.open()
    workload = make.workload(secrets=(("A", "b"),))
    await store.commit(Batch([workload], events=[make.event(1, workload)], nodes=[make.node()]))
    await store.close()
    await upgrade(url)
    assert await schema(url) == before
    await store.open()
    assert await store.live() == [workload]
    assert await store.nodes() == [make.node()]
    await store.close()


async def test_database_of_a_newer_program_is_refused(url: str) -> None:
    await upgrade(url)
    await run(url, "UPDATE schema_version SET version_num = '9999'")
    for call in (upgrade, check, lambda address: SqlStore(address).open()):
        newer = rf"newer Commonage \(schema 9999, this program knows up to {HEAD}\)"
        with pytest.raises(Conflict, match=newer) as caught:
            await call(url)
        assert caught.value.problem_code == "database-newer"


@pytest.mark.parametrize("revision", ["0001", "0006", "0099"])
async def test_database_older_than_the_initial_schema_is_refused_and_not_changed(url: str, revision: str) -> None:
    await upgrade(url)
    await run(url, f"UPDATE schema_version SET version_num = '{revision}'", "DROP TABLE images")
    before = await schema(url)
    for call in (upgrade, check, lambda address: SqlStore(address).open()):
        with pytest.raises(Conflict, match=rf"has schema {revision}\. .* is {OLDEST}\. .* start again") as caught:
            await call(url)
        assert caught.value.problem_code == "database-unsupported"
    assert await schema(url) == before
    assert await run(url, "SELECT version_num FROM schema_version") == [[(revision,)]]


def test_every_verb_says_why_an_old_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "commonage.db"
    asyncio.run(upgrade(sqlite_url(path)))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE schema_version SET version_num = '0006'")
    for verb, words in ((db, ["upgrade"]), (db, ["check"]), (doctor, [])):
        done = CliRunner().invoke(verb, [*words, "--data-dir", str(tmp_path)])
        assert done.exit_code != 0
        assert "Move the file away and start again" in " ".join(done.output.split())


async def test_a_failed_migration_leaves_nothing_behind(url: str) -> None:
    await run(url, "CREATE TABLE nodes (site TEXT)")  # in the way of the initial migration
    with pytest.raises(Exception, match="nodes"):
        await upgrade(url)
    tables = (await schema(url))[0]
    assert {row[0] if not url.startswith("sqlite") else row[1] for row in tables} == {"nodes"}
    await run(url, "DROP TABLE nodes")
    await upgrade(url)
    assert await check(url) == []


async def test_two_tasks_at_once(url: str) -> None:
    await asyncio.gather(*(upgrade(url) for _ in range(4)))
    assert await check(url) == []


async def test_processes_at_once(url: str) -> None:
    await asyncio.gather(*(_in_a_process(url) for _ in range(3)))
    assert await check(url) == []


async def _in_a_process(url: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", UPGRADE, url, stderr=subprocess.PIPE)
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def test_upgrade_makes_the_folder_and_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "commonage.db"
    await upgrade(sqlite_url(path))
    assert path.stat().st_mode & 0o777 == 0o600
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_looking_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "commonage.db"
    assert await check(sqlite_url(path)) == [
        f"it is at schema none, this program needs {HEAD}: run `commonage db upgrade`"
    ]
    with pytest.raises(Conflict):
        await SqlStore(sqlite_url(path)).open()
    assert not path.exists()
