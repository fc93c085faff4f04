"""Reservations in the database, each under its id. Called by `sql_store`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import bindparam, delete, select
from sqlalchemy.engine import Connection

from commonage.domain.tenants import Reservation
from commonage.store.codec import RESERVATION, Row, clean
from commonage.store.database import Database
from commonage.store.statements import Prepared, upsert
from commonage.store.tables import reservations


class Reservations:
    """The repository of reservations."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = Prepared(upsert(reservations, database.dialect), database.dialect)
        by_id = delete(reservations).where(reservations.c.id == bindparam("gone"))
        self._delete = Prepared(by_id, database.dialect)

    def write(self, connection: Connection, rows: Iterable[Row], gone: Iterable[str]) -> None:
        """Insert or replace by id, then delete the removed ones."""
        self._upsert.many(connection, rows)
        self._delete.many(connection, ({"gone": clean(each)} for each in gone))

    async def after(self, at: float) -> Sequence[Reservation]:
        """Reservations that end after `at`, in order of their begin."""
        which = select(*(reservations.c[name] for name in RESERVATION.columns)).where(reservations.c.ends_at > at)
        rows = await self._database.read(which.order_by(reservations.c.starts_at, reservations.c.id))
        return [RESERVATION.value(row) for row in rows]
