"""Connections: one writer and several readers of SQLite, a pool of PostgreSQL; their set-up and release.

Called by `sql_store` and `upgrade`. Queries are plain functions of a connection, the same for both databases.
PostgreSQL runs them over asyncpg; SQLite runs each function in a thread: passing every statement to the thread
separately cost five times as much as a small commit (docs/adr/0002-write-through-one-commit-call.md).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Executable, create_engine, event
from sqlalchemy.engine import URL, Connection, Dialect, Engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from commonage.domain.errors import Unavailable
from commonage.store.failures import translated
from commonage.store.urls import shown

T = TypeVar("T")

_READERS: Final = 4
# How long to wait for another program (a backup, `commonage db`) before an error.
_PATIENCE_S: Final = 15.0
_RECLAIMED_PAGES: Final = 2000


class Database(ABC):
    """Connections to one database. `write` runs transactions, `read` single statements; both raise only Commonage's
    errors.
    """

    def __init__(self, url: URL) -> None:
        self.where = shown(url)
        self._writing: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    @abstractmethod
    def dialect(self) -> Dialect: ...

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction, durable on return; nothing is written if it raises.

        If the caller is cancelled, the transaction still ends by itself: completely or not at all.
        """
        self._must_be_open()
        task = asyncio.ensure_future(self._write(work))
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    async def read(self, statement: Executable) -> Sequence[Sequence[Any]]:
        """All rows of one query, each a sequence of its columns."""
        self._must_be_open()
        with translated(self.where):
            return await self._read(statement)

    async def reclaim(self) -> bool:
        """See the store port."""
        return False

    async def close(self) -> None:
        """Let transactions that have begun end, then disconnect."""
        self._closed = True
        if self._writing:
            await asyncio.wait(self._writing)
        with translated(self.where):
            await self._dispose()

    async def _write(self, work: Callable[[Connection], T]) -> T:
        with translated(self.where):
            return await self._transaction(work)

    def _written(self, task: asyncio.Task[Any]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone; then no other code would fetch it

    def _must_be_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the database {self.where} was closed: Commonage is stopping")

    @abstractmethod
    async def _transaction(self, work: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, statement: Executable) -> Sequence[Sequence[Any]]: ...

    @abstractmethod
    async def _dispose(self) -> None: ...


def connect(url: URL, *, reconnect_timeout_s: float = _PATIENCE_S) -> Database:
    """The database at `url`; connections open on first use."""
    if url.drivername.startswith("postgresql"):
        return _Postgres(url, reconnect_timeout_s)
    return _Sqlite(url, reconnect_timeout_s)


class _Postgres(Database):
    def __init__(self, url: URL, reconnect_timeout_s: float) -> None:
        super().__init__(url)
        self._engine = create_async_engine(
            url,
            pool_size=2 * _READERS,
            max_overflow=0,
            pool_timeout=reconnect_timeout_s,
            pool_pre_ping=True,
            hide_parameters=True,  # secrets are among them, and errors are logged
            connect_args={"timeout": reconnect_timeout_s, "command_timeout": max(60.0, reconnect_timeout_s)},
        )
        self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    @property
    def dialect(self) -> Dialect:
        return self._engine.dialect

    async def _transaction(self, work: Callable[[Connection], T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def _read(self, statement: Executable) -> Sequence[Sequence[Any]]:
        async with self._reading.connect() as connection:
            return (await connection.execute(statement)).fetchall()

    async def _dispose(self) -> None:
        await self._engine.dispose()


class _Sqlite(Database):
    def __init__(self, url: URL, reconnect_timeout_s: float) -> None:
        super().__init__(url)
        url = url.set(drivername="sqlite+pysqlite")
        self._writer = _sqlite_engine(url, reconnect_timeout_s, writes=True)
        self._reader = _sqlite_engine(url, reconnect_timeout_s, writes=False)
        # SQLite has one writer anyway: waiting in this thread's queue is fair and cheap, waiting for the lock is not.
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._reader_threads = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")

    @property
    def dialect(self) -> Dialect:
        return self._writer.dialect

    async def _transaction(self, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._writer.begin() as connection:
                return work(connection)

        return await _in(self._writer_thread, run)

    async def _read(self, statement: Executable) -> Sequence[Sequence[Any]]:
        def run() -> Sequence[Sequence[Any]]:
            with self._reader.connect() as connection:
                return connection.execute(statement).fetchall()

        return await _in(self._reader_threads, run)

    async def reclaim(self) -> bool:
        return await self.write(_shrink)

    async def _dispose(self) -> None:
        await _in(self._reader_threads, self._reader.dispose)
        await _in(self._writer_thread, self._writer.dispose)
        self._reader_threads.shutdown()
        self._writer_thread.shutdown()


def _shrink(connection: Connection) -> bool:
    """Give pages back if more than a quarter of the file is free; less is soon used again."""
    free, pages = _pragma(connection, "freelist_count"), _pragma(connection, "page_count")
    if free * 4 <= pages:
        return False
    # By the driver: it frees a page for each row that is fetched, and SQLAlchemy fetches none without columns.
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA incremental_vacuum({_RECLAIMED_PAGES})")
    cursor.fetchall()
    cursor.close()
    return _pragma(connection, "freelist_count") < free


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())


async def _in(threads: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _sqlite_engine(url: URL, reconnect_timeout_s: float, *, writes: bool) -> Engine:
    engine = create_engine(
        url,
        pool_size=1 if writes else _READERS,
        max_overflow=0,
        pool_timeout=reconnect_timeout_s,
        hide_parameters=True,  # secrets are among them, and errors are logged
        connect_args={"check_same_thread": False},
        **({} if writes else {"isolation_level": "AUTOCOMMIT"}),
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: ConnectionPoolEntry) -> None:
        _set_up_sqlite(connection, reconnect_timeout_s, writes)

    if writes:

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            # A transaction that reads first and writes later could fail half-way; this one waits here, once.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _set_up_sqlite(connection: Any, reconnect_timeout_s: float, writes: bool) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    if writes:  # has an effect on a new file only: one without tables, before write-ahead logging is on
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL").close()
    pragmas = [
        f"busy_timeout={int(reconnect_timeout_s * 1000)}",
        "synchronous=FULL",  # acknowledged writes survive a power cut
        "foreign_keys=ON",
        "secure_delete=FAST",  # a deleted secret does not stay in the file
        "cache_size=-8000",
        "temp_store=MEMORY",
    ]
    if not writes:
        pragmas.append("query_only=ON")
    _write_ahead(connection, reconnect_timeout_s)
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").close()


def _write_ahead(connection: Any, reconnect_timeout_s: float) -> None:
    """Switch to write-ahead logging. SQLite does not wait for the lock here, regardless of busy_timeout."""
    give_up_at = time.monotonic() + reconnect_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(0.02)


def prepare_file(url: URL) -> None:
    """Create the file of an SQLite database, readable only by its owner (it holds secrets), and its folder.

    Raises Unavailable if that fails.
    """
    if not url.drivername.startswith("sqlite"):
        return
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise Unavailable(f"the database {path} cannot be written: {error.strerror}", retryable=False) from error
