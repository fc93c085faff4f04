"""The metrics port on SQL: figures as measured, later by minute, then by hour.

Made and opened by the server, written by the sampling loop, read by API and portal. On PostgreSQL the tables are in
the store's database; with a store on SQLite they are in a separate file, so that a flood of samples never delays a
submit. The last seconds may be lost in a crash: nothing here waits for the disk.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Float,
    Integer,
    Select,
    Table,
    cast,
    delete,
    event,
    func,
    insert,
    literal,
    literal_column,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from commonage.domain.errors import Conflict, Unavailable
from commonage.domain.nodes import LOCAL_SITE
from commonage.metrics.sql_tables import VERSION, about, hours, metadata, minutes, raw, series
from commonage.ports.metrics import Point, Sample

DAY_S: Final = 86400
_STEP_S: Final = 3600  # old figures are rolled up an hour at a time, not at every call
_SERIES_REMEMBERED: Final = 20_000
_SERIES_AT_ONCE: Final = 1000  # rolled up in one transaction, while new samples wait


@dataclass(frozen=True, slots=True)
class SampleRetention:
    """How long samples are kept as they are, by minute, by hour, and those of attempts at most, in seconds."""

    raw_s: float = DAY_S
    minutes_s: float = 30 * DAY_S
    hours_s: float = 730 * DAY_S
    attempts_s: float = 90 * DAY_S


async def _add_sites(connection: AsyncConnection) -> None:
    """From version 1, whose subjects were `node:NAME` and `device:UUID`, all of the local site."""
    for kind in ("node:", "device:"):
        name = func.substr(series.c.subject, len(kind) + 1)
        renamed = literal(f"{kind}{LOCAL_SITE}/") + name
        await connection.execute(update(series).where(series.c.subject.startswith(kind)).values(subject=renamed))


class SqlMetrics:
    """Metrics in the database at `url`, or in a file next to it. `url` is the store's (`sqlite:///…` or
    `postgresql://…`).
    """

    def __init__(self, url: str, retention: SampleRetention | None = None) -> None:
        self._url = _address(url)
        self._retention = retention or SampleRetention()
        self._engine: AsyncEngine | None = None
        # One writer, so that a series is not dropped as empty while its first sample is on the way.
        self._turn = asyncio.Lock()
        self._ids: dict[tuple[str, str], int] = {}
        self._rolled_up_to = -math.inf

    async def open(self) -> None:
        """Connect and create missing tables. Raises Unavailable; Conflict if the tables are of a newer program."""
        self._engine = _engine(self._url)
        try:
            async with self._writing() as connection:
                await self._prepare(connection)
        except BaseException:
            await self.close()
            raise

    async def _prepare(self, connection: AsyncConnection) -> None:
        if connection.dialect.name == "postgresql":
            await connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7308339910637985895)")
        await connection.run_sync(metadata.create_all)
        version = (await connection.execute(select(func.max(about.c.version)))).scalar()
        if version is None:
            await connection.execute(insert(about).values(version=VERSION))
        elif version > VERSION:
            raise Conflict("the samples were written by a newer Commonage; start that one", code="database-newer")
        elif version < VERSION:
            await _add_sites(connection)
            await connection.execute(insert(about).values(version=VERSION))

    async def close(self) -> None:
        if self._engine is not None:
            async with self._turn:
                await self._engine.dispose()
                self._engine = None

    async def write(self, samples: Sequence[Sample]) -> None:
        """Store these; of two with the same time the later in order wins. Values that are not finite are left out."""
        kept = {(each.subject, each.metric, each.at): each for each in samples if math.isfinite(each.value)}
        if not kept:
            return
        async with self._turn, self._writing() as connection:
            await self._know_series(connection, kept.values())
            rows = [
                {"series_id": self._ids[each.subject, each.metric], "at": each.at, "value": each.value}
                for each in kept.values()
            ]
            statement = _insert(raw, connection)
            await connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["series_id", "at"], set_={"value": statement.excluded.value}
                ),
                rows,
            )

    async def _know_series(self, connection: AsyncConnection, samples: Iterable[Sample]) -> None:
        if len(self._ids) > _SERIES_REMEMBERED:
            self._ids.clear()
        new = {pair for each in samples if (pair := (each.subject, each.metric)) not in self._ids}
        if not new:
            return
        await connection.execute(
            _insert(series, connection).on_conflict_do_nothing(),
            [{"subject": subject, "metric": metric} for subject, metric in sorted(new)],
        )
        subjects = sorted({subject for subject, _ in new})
        for begin in range(0, len(subjects), 1000):  # a statement takes a limited number of parameters
            part = subjects[begin : begin + 1000]
            for row in await connection.execute(select(series).where(series.c.subject.in_(part))):
                self._ids[row.subject, row.metric] = row.id

    async def query(
        self, metric: str, subject: str, *, since: float, until: float, points: int = 200
    ) -> Sequence[Point]:
        """Buckets of a width that suits `points`, beginning at multiples of it; empty buckets are left out."""
        if not since < until:
            return []
        width = width_of(since, until, points)
        async with self._reading() as connection:
            wanted = select(series.c.id).where(series.c.subject == subject, series.c.metric == metric)
            figures = _all_resolutions(wanted, since, until).subquery()
            bucket = _number_of(figures.c.at, width, connection).label("bucket")
            rows = await connection.execute(
                select(
                    bucket,
                    func.sum(figures.c.total),
                    func.sum(figures.c.number),
                    func.min(figures.c.least),
                    func.max(figures.c.most),
                )
                .group_by(literal_column("bucket"))
                .order_by(literal_column("bucket"))
            )
            return [
                # int: PostgreSQL adds whole numbers up to a decimal
                Point(max(since, number * width), total / int(count), least, most)
                for number, total, count, least, most in rows
            ]

    async def tidy(self, now: float) -> None:
        """Roll up old figures and drop expired ones; does work at most once per hour of `now`."""
        hour = now // _STEP_S * _STEP_S
        if hour <= self._rolled_up_to:
            return
        first = -1
        while True:
            async with self._turn, self._writing() as connection:
                ids = select(series.c.id).where(series.c.id > first).order_by(series.c.id).limit(_SERIES_AT_ONCE)
                last = (await connection.execute(select(func.max(ids.subquery().c.id)))).scalar()
                if last is None:
                    break
                await self._tidy_series(connection, hour, first, last)
            first = last
        self._rolled_up_to = hour

    async def _tidy_series(self, connection: AsyncConnection, hour: float, first: int, last: int) -> None:
        """The series with `first` < id <= `last`."""
        kept = self._retention

        def mine(column: ColumnElement[int]) -> ColumnElement[bool]:
            return (column > first) & (column <= last)

        await _roll_up(connection, raw, minutes, 60, hour - kept.raw_s // 60 * 60, mine(raw.c.series_id))
        before = (hour - kept.minutes_s) // 3600 * 3600
        await _roll_up(connection, minutes, hours, 3600, before, mine(minutes.c.series_id))
        for table in (minutes, hours):
            await connection.execute(delete(table).where(mine(table.c.series_id), table.c.at < hour - kept.hours_s))
            of_attempts = select(series.c.id).where(mine(series.c.id), series.c.subject.startswith("attempt:"))
            too_old = table.c.at < hour - min(kept.attempts_s, kept.hours_s)
            await connection.execute(
                delete(table).where(mine(table.c.series_id), too_old, table.c.series_id.in_(of_attempts))
            )
        empty = [~select(table).where(table.c.series_id == series.c.id).exists() for table in (raw, minutes, hours)]
        gone = await connection.execute(delete(series).where(mine(series.c.id), *empty).returning(series.c.id))
        if gone.scalars().all():
            self._ids.clear()

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that does not wait for the disk. Raises Unavailable."""
        try:
            async with self._translated() as engine, engine.begin() as connection:
                if connection.dialect.name == "postgresql":
                    await connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
                yield connection
        except BaseException:
            self._ids.clear()  # series of a transaction that was rolled back do not exist
            raise

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        async with self._translated() as engine, engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[AsyncEngine]:
        if self._engine is None:
            raise Unavailable("the samples are not open")
        try:
            yield self._engine
        except (SQLAlchemyError, OSError, UnicodeEncodeError) as error:
            native = error.orig if isinstance(error, DBAPIError) else error
            raise Unavailable(f"the samples cannot be kept or read: {native}") from error


def _address(url: str) -> URL:
    """The address for the samples: the same server, or a file of their own next to the store's."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        path = Path(str(address.database))
        return address.set(
            drivername="sqlite+aiosqlite", database=str(path.with_name(f"{path.stem}-samples{path.suffix}"))
        )
    mode = address.query.get("sslmode")
    if mode is not None:
        address = address.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return address.set(drivername="postgresql+asyncpg")


def _engine(url: URL) -> AsyncEngine:
    if url.get_backend_name() != "sqlite":
        return create_async_engine(url, pool_size=3, max_overflow=0, pool_pre_ping=True)
    engine = create_async_engine(url, pool_size=3, max_overflow=0)
    path = Path(str(url.database))

    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        path.chmod(0o600)
        cursor = connection.cursor()
        for pragma in ("busy_timeout=15000", "journal_mode=WAL", "synchronous=NORMAL", "cache_size=-4000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


def _insert(table: Table, connection: AsyncConnection) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def _number_of(at: ColumnElement[float], width: float, connection: AsyncConnection) -> ColumnElement[Any]:
    """The number of the multiple of `width` at or before a time. Times are never before 1970."""
    quotient = at / literal_column(repr(float(width)), Float)
    if connection.dialect.name == "postgresql":
        return func.floor(quotient)
    return cast(quotient, Integer)  # not every SQLite has floor(), and this one does not round


def _all_resolutions(wanted: Select[int], since: float, until: float) -> Any:
    """Every figure of a series within [since, until), each from the one table that has it."""
    parts = [
        select(raw.c.at, literal_column("1").label("number"), raw.c.value.label("total"),
               raw.c.value.label("least"), raw.c.value.label("most"))
        .where(raw.c.series_id == wanted.scalar_subquery(), raw.c.at >= since, raw.c.at < until)
    ]  # fmt: skip
    parts += [
        select(table.c.at, table.c.number, table.c.total, table.c.least, table.c.most).where(
            table.c.series_id == wanted.scalar_subquery(), table.c.at >= since, table.c.at < until
        )
        for table in (minutes, hours)
    ]
    return union_all(*parts)


async def _roll_up(
    connection: AsyncConnection, fine: Table, coarse: Table, width: int, before: float, mine: ColumnElement[bool]
) -> None:
    """Move figures of these series older than `before` (a multiple of `width`) into buckets, adding to existing."""
    value = fine.c.value if fine is raw else None
    at = (_number_of(fine.c.at, width, connection) * width).label("bucket")
    figures = select(
        fine.c.series_id,
        at,
        func.count() if value is not None else func.sum(fine.c.number),
        func.sum(value if value is not None else fine.c.total),
        func.min(value if value is not None else fine.c.least),
        func.max(value if value is not None else fine.c.most),
    ).where(mine, fine.c.at < before)
    statement = _insert(coarse, connection).from_select(
        ["series_id", "at", "number", "total", "least", "most"],
        figures.group_by(fine.c.series_id, literal_column("bucket")),
    )
    new, old = statement.excluded, coarse.c
    is_postgres = connection.dialect.name == "postgresql"
    least, most = (func.least, func.greatest) if is_postgres else (func.min, func.max)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["series_id", "at"],
            set_={
                "number": old.number + new.number,
                "total": old.total + new.total,
                "least": least(old.least, new.least),
                "most": most(old.most, new.most),
            },
        )
    )
    await connection.execute(delete(fine).where(mine, fine.c.at < before))


_NICE_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def width_of(since: float, until: float, points: int) -> float:
    """Seconds of a bucket so that at most `points` + 1 of them cover [since, until).

    From one second on it is a round width, so that a chart that moves with time keeps its buckets.
    """
    least = (until - since) / max(1, points)
    if least < 1:
        return least
    nice = next((width for width in _NICE_S if width >= least), None)
    return float(nice if nice is not None else math.ceil(least / 86400) * 86400)
