"""Connections: one writer and several readers of SQLite, a pool of PostgreSQL; how they are set up and given back.

Called by `sql_store` and `upgrade`. What is written and read stands in the repositories.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Executable, event
from sqlalchemy.engine import URL, Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from commonage.domain.errors import Unavailable
from commonage.store.failures import translated
from commonage.store.urls import shown

_READERS: Final = 4
# How long a write of another program (a backup, `commonage db`) may keep us waiting before we say so.
_PATIENCE_S: Final = 15.0

Write = Callable[[AsyncConnection], Awaitable[None]]


def make_engine(url: URL, *, patience_s: float = _PATIENCE_S, writes: bool = True, size: int = 1) -> AsyncEngine:
    """An engine with `size` connections, set up for durability. A transaction of SQLite takes the lock when it begins.

    With `writes` false the connections can only read, each statement on its own.
    """
    if url.drivername.startswith("postgresql"):
        engine = create_async_engine(
            url,
            pool_size=size,
            max_overflow=0,
            pool_timeout=patience_s,
            pool_pre_ping=True,
            connect_args={"timeout": patience_s, "command_timeout": max(60.0, patience_s)},
        )
        return engine if writes else engine.execution_options(isolation_level="AUTOCOMMIT")
    engine = create_async_engine(
        url,
        pool_size=size,
        max_overflow=0,
        pool_timeout=patience_s,
        isolation_level=None if writes else "AUTOCOMMIT",
    )

    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection: Any, _record: ConnectionPoolEntry) -> None:
        _set_up_sqlite(connection, patience_s, writes)

    if writes:

        @event.listens_for(engine.sync_engine, "begin")
        def begin(connection: Connection) -> None:
            # A transaction that reads first and writes later could fail half-way; this one waits here, once.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _set_up_sqlite(connection: Any, patience_s: float, writes: bool) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    cursor = connection.cursor()
    pragmas = [
        f"busy_timeout={int(patience_s * 1000)}",  # first: the next one may have to wait
        "journal_mode=WAL",
        "synchronous=FULL",  # what was acknowledged survives a power cut
        "foreign_keys=ON",
        "secure_delete=FAST",  # a secret that was dropped is not left in the file
        "cache_size=-8000",
        "temp_store=MEMORY",
    ]
    if not writes:
        pragmas.append("query_only=ON")
    for pragma in pragmas:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def prepare_file(url: URL) -> None:
    """Make the file of an SQLite database, for its owner alone (it holds secrets), and the folder it stands in.

    Raises Unavailable when that cannot be.
    """
    if not url.drivername.startswith("sqlite"):
        return
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise Unavailable(f"the database {path} cannot be written: {error.strerror}", retryable=False) from error


class Database:
    """Connections to one database. `write` runs one transaction at a time, `read` any number of single statements."""

    def __init__(self, url: URL) -> None:
        self.where = shown(url)
        self.dialect = url.get_backend_name()
        is_sqlite = self.dialect == "sqlite"
        self._writer = make_engine(url, size=1 if is_sqlite else _READERS)
        self._reader = make_engine(url, writes=False, size=_READERS)
        # SQLite has one writer anyway: waiting here is fair and free, waiting for its lock is neither.
        self._turn = asyncio.Semaphore(1 if is_sqlite else _READERS)
        self._writing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def close(self) -> None:
        """Let transactions that have begun end, then disconnect."""
        self._closed = True
        if self._writing:
            await asyncio.wait(self._writing)
        with translated(self.where):
            await self._writer.dispose()
            await self._reader.dispose()

    async def write(self, work: Write) -> None:
        """Run `work` in one transaction, durable when this returns; nothing is written when it raises.

        A caller that is cancelled leaves the transaction to end by itself: whole or not at all.
        """
        self._must_be_open()
        task = asyncio.ensure_future(self._write(work))
        self._writing.add(task)
        task.add_done_callback(self._written)
        await asyncio.shield(task)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone; then nobody else would fetch it

    async def _write(self, work: Write) -> None:
        async with self._turn:
            with translated(self.where):
                async with self._writer.begin() as connection:
                    await work(connection)

    async def read(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """All rows of one query, each a sequence of its columns."""
        self._must_be_open()
        with translated(self.where):
            async with self._reader.connect() as connection:
                return (await connection.execute(statement, parameters)).fetchall()

    def _must_be_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the database {self.where} was closed: Commonage is stopping")
