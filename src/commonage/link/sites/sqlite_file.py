"""A small SQLite file that one process owns: written in order by one thread, durable once a write has returned.

Used by both ends of a site link for what must survive a crash of either. The platform's own database is `store`.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from commonage.domain.errors import Unavailable

_log = logging.getLogger(__name__)
Statement = tuple[str, tuple[Any, ...]]


class SqliteFile:
    """`schema` are statements that make what does not exist yet. The file is readable by its owner only.

    `on_full` deletes what gives way to everything else: when the disk is full, a write is tried once more after it.
    """

    def __init__(self, path: Path, schema: Sequence[str], on_full: str = "") -> None:
        self.path, self._schema, self._on_full = path, schema, on_full
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sqlite {path.name}")
        self._connection: sqlite3.Connection | None = None
        self._posted: dict[tuple[str, Any], Statement] = {}  # in the thread: not written yet, in their order

    async def open(self) -> None:
        """Raises Unavailable."""
        await self._in_thread(self._open)

    def _open(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.touch(mode=0o600)
        self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", *self._schema):
            self._connection.execute(statement)

    async def close(self) -> None:
        """Complete all writes first."""
        self.post()
        await asyncio.to_thread(self._thread.shutdown)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def write(self, *statements: Statement) -> None:
        """Durable when this returns, together with all earlier writes. Raises Unavailable; then none is written."""
        await self._in_thread(self._write, statements)

    def post(self, *statements: Statement) -> None:
        """Write soon, after all earlier writes. If that fails, as on a full disk, the next write includes it.

        The first parameter of each is the key of its row: a statement that is not written yet gives way to the same
        statement for the same row.
        """
        self._thread.submit(self._write_posted, statements).add_done_callback(self._log_failure)

    async def read(self, query: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Raises Unavailable."""

        def read() -> list[tuple[Any, ...]]:
            return self._opened().execute(query, parameters).fetchall()

        rows: list[tuple[Any, ...]] = await self._in_thread(read)
        return rows

    def _write_posted(self, statements: Sequence[Statement]) -> None:
        for statement, parameters in statements:
            key = (statement, parameters[0])
            self._posted.pop(key, None)
            self._posted[key] = (statement, parameters)
        if self._posted:
            self._write(())

    def _write(self, statements: Sequence[Statement]) -> None:
        everything = [*self._posted.values(), *statements]
        try:
            self._commit(everything)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL or not self._on_full:
                raise
            self._commit([(self._on_full, ())])
            _log.warning("the disk of %s is full: its oldest samples are deleted", self.path)
            self._commit(everything)
        self._posted.clear()

    def _commit(self, statements: Sequence[Statement]) -> None:
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement, parameters in statements:
                connection.execute(statement, parameters)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk may have ended it, or have left it open at the commit
                connection.execute("ROLLBACK")
            raise

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None, "it is not open"
        return self._connection

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.wrap_future(self._thread.submit(work, *arguments))
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(
                f"{self.path} cannot be used ({error}): free some space, or make it writable for this user"
            ) from error

    def _log_failure(self, done: Future[None]) -> None:
        if (error := done.exception()) is not None:
            _log.error("%s cannot be written: %s", self.path, error)
